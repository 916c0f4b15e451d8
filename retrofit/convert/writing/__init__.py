"""Files of a conversion written all or none, inside the project only, with a journal to undo them."""
