"""What a loss does with the rows of a batch that is not the same for each: places, sequences, lengths."""
