"""Files, folders, prints and trackers of a training, and who may write them."""
