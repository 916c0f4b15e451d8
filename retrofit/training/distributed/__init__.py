"""Facts that matter on several ranks: values to reduce, and places to reduce them."""
