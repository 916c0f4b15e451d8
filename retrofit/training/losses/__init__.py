"""How training losses are made of the losses of single samples."""
