"""Packages: where those of a command come from, and the pip command that installs what it lacks."""
