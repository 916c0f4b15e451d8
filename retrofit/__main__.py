"""`python -m retrofit` is the command `retrofit`."""

import sys

from retrofit.cli import main

if __name__ == "__main__":
    sys.exit(main())
