"""What a training script needs on several ranks: values that are reduced, and where."""
