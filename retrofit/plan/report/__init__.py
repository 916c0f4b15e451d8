"""The plan as a table, a recommendation, a picture and a file for programs."""
