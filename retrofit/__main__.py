"""`python -m retrofit` is the command `retrofit`; a folder that is not to be trusted is safer with the latter.

Python itself loads some modules for `-m`, from the current folder first (`python -P -m` does not, since 3.11).
"""

import sys

from retrofit.packages import import_path


def main() -> int:
    """Run the command line in this process, which is ours."""
    import_path.keep_to_standard_library()
    from retrofit import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
