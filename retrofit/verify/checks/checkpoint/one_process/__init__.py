"""Resumes on one process, with which those of several are compared."""
