"""What a script does already to train on several processes, and which of them run what."""
