# Executed by train.py: sets its constants from files of Python and from --name=value.
import sys
from ast import literal_eval

for arg in sys.argv[1:]:
    if '=' not in arg:
        print(f"settings of {arg}")
        exec(open(arg).read())
        continue
    key, val = arg.lstrip('-').split('=')
    if key not in globals():
        raise ValueError(f"no setting {key}")
    try:
        val = literal_eval(val)
    except (SyntaxError, ValueError):
        pass
    print(f"{key} = {val}")
    globals()[key] = val
