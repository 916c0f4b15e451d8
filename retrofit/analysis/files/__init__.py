"""Files of a project: their texts, which of them a script imports, and how the script is started."""
