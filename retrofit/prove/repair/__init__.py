"""`retrofit verify --fix`: edits for the faults that `verify` names, each proven by verifying the repaired copy."""
