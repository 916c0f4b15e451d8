"""Data and control flow: reaching definitions, variables that hold an object, code that is run."""
