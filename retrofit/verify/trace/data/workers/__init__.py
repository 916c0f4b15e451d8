"""Loader workers, which run inside the process while it is traced, and what is called in a fork of it."""
