"""Import paths of the commands: the interpreter and its packages, never the folder that they examine.

Python searches the current folder first for `python -m retrofit`, so a project's `argparse.py` would be run in place
of the standard library's. This module may import nothing before that folder is off the search path.
"""

import sys

before: list[str] = []  # the search path of a script of the user's, without its own folder


def keep_to_standard_library() -> None:
    """Search for modules in the standard library's own folders only; those of this package are found all the same."""
    is_safe = getattr(sys.flags, "safe_path", False) or sys.flags.isolated
    first = [] if is_safe else [sys.path.pop(0)]
    import os

    of_command = os.path.dirname(os.path.realpath(sys.argv[0]))
    before[:] = [folder for folder in first if folder not in ("", os.getcwd(), of_command)] + sys.path
    sys.path[:] = _standard_folders()


def add_packages() -> None:
    """Search among the installed packages and in PYTHONPATH too, except in the current folder."""
    import os

    if before:
        here = os.path.realpath(os.curdir)
        sys.path[:] = [folder for folder in before if os.path.isabs(folder) and os.path.realpath(folder) != here]


def _standard_folders() -> list[str]:
    import os

    library = os.path.dirname(os.__file__)
    below = os.path.join(library, "")
    return [
        folder
        for folder in sys.path
        if folder == library
        or (folder.startswith(below) and os.path.basename(folder) not in ("site-packages", "dist-packages"))
    ]
