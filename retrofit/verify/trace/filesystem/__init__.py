"""Files that the script writes, saves, renames and loads, and the run's own copy of the project."""
