"""Worked examples, before and after, for scripts that `convert` refuses: `retrofit rules NAME` shows them."""
