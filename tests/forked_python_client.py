"""What starts a program of forked_python.py sees this process: it passes signals on and ends with its exit status.

python -IS forked_python_client.py SOCKET REAL_PYTHON EXECUTABLE ARGUMENTS...
"""

import json
import os
import signal
import socket
import sys

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main(address, real_python, executable, *arguments):
    first = arguments[1:2] if arguments[:1] == ("-u",) else arguments[:1]
    is_odd = not first or (first[0].startswith("-") and first[0] not in ("-m", "-c"))
    if is_odd or os.path.basename(first[0]) == "dependencies.py":  # keeps a record for each interpreter
        os.execv(real_python, [real_python, *arguments])
    request = {"executable": executable, "folder": os.getcwd(), "environment": dict(os.environ)}
    content = json.dumps({**request, "arguments": arguments}).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [len(content).to_bytes(4, "big")], [0, 1, 2])
        connection.sendall(content)
        for number in PASSED_ON:
            signal.signal(number, lambda number, frame: connection.send(bytes([number])))
        status = int.from_bytes(connection.recv(4), "big", signed=True)
    if status < 0:
        if -status in PASSED_ON:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


sys.exit(main(*sys.argv[1:]))
