"""The tracer: records what one process of a training does, without a change to its code.

It is loaded into the traced process before the script, and so it imports nothing of retrofit but the runtime; nothing
of the runtime imports the tracer.
"""

import os

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")  # of the tracer's own frames in a stack
