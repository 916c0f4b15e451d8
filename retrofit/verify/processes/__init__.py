"""Start, watch and end the processes of a run, each in a copy of the project."""
