"""How the edits of all rules come together: where they go, and the texts they give."""
