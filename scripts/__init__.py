"""Scripts of the reference project, not part of the installed package.

This file makes the folder a package: next to train.py it then comes before any other package called `scripts`.
"""
