"""`retrofit convert --prove`: run a conversion before it is written, and write it if it is the same training."""
