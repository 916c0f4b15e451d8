"""Run a script and leave with status 0 when it has come to its end.

Python's own way out sometimes aborts, under load, when gloo's threads are still there.
"""

from __future__ import annotations

import os
import runpy
import sys

script = sys.argv[1]
sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(script)
runpy.run_path(script, run_name="__main__")
sys.stdout.flush()
os._exit(0)
