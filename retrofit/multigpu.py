"""The functions by which this project trains on many GPUs: the runtime of torch-retrofit 0.1.0.

This file was put here by `retrofit convert` and belongs to your project: commit it. It needs torch alone. Started
without a launcher every function gives back what it was given, so that the script trains on one GPU as before.

`retrofit convert --update-runtime` writes the file of the kit that is installed in its place.
What you change here yourself is not overwritten without --force. The names are those of the library: with the kit
installed, `import retrofit.distributed as rd` does the same as `import multigpu as rd`.
"""

import sys

from retrofit.distributed import *

RETROFIT_RUNTIME = "0.1.0"
if __name__ == "__main__":
    from retrofit.distributed.launcher import main

    sys.exit(main(sys.argv[1:]))
# Unchanged while the text above has the SHA-256 d1b4b74e5fcc7ce7523518790eaaf67b631075970a3d3208e5ae57acba104625
