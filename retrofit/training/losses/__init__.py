"""Training losses as sums and means of the losses of single samples."""
