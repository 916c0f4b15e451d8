"""The report of a verification: in the terminal, as JSON, as a page."""
