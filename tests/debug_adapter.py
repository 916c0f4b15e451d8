"""A small client of the Debug Adapter Protocol that does what VS Code does with a launch.json configuration.

It starts debugpy's own adapter, runs the program in a "terminal" of its own when the adapter asks for that,
and opens a further session for every child process that the adapter reports. Everything has a deadline, and
`close` ends what was started here and nothing else.

The protocol: https://microsoft.github.io/debug-adapter-protocol/specification
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO, Callable

import psutil

Message = dict[str, Any]


class Stop:
    """A thread of a debugged process that stands still."""

    def __init__(self, session: Session, event: Message) -> None:
        self.session, self.thread_id = session, event["threadId"]
        # An exception that nobody catches stands still too; None at a breakpoint.
        self.exception = event.get("description", "?") if event["reason"] == "exception" else None

    def evaluate(self, expression: str) -> str:
        """Return what the expression is in the innermost frame, as the debug console shows it."""
        frames = self.session.request("stackTrace", threadId=self.thread_id, levels=1)["stackFrames"]
        answer = self.session.request("evaluate", expression=expression, frameId=frames[0]["id"], context="repl")
        return answer["result"]

    def location(self) -> tuple[str, int]:
        """Return the file's path and the line."""
        frames = self.session.request("stackTrace", threadId=self.thread_id, levels=1)["stackFrames"]
        return frames[0]["source"]["path"], frames[0]["line"]

    def resume(self) -> None:
        """Let the process run on."""
        self.session.request("continue", threadId=self.thread_id)


class Session:
    """One debug session: one connection to the adapter, one debugged process."""

    def __init__(self, editor: Editor, reader: BinaryIO, writer: BinaryIO, on_close: Callable[[], Any]) -> None:
        self.editor, self._reader, self._writer, self._on_close = editor, reader, writer, on_close
        self._next_number, self._write_lock = 1, threading.Lock()
        self._answers: dict[int, Message] = {}
        self.initialized = self.ended = False
        self.exit_code: int | None = None
        self.process_id: int | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def request(self, command: str, **arguments: Any) -> Any:
        """Send a request and return the body of the answer. Raises RuntimeError when the adapter refuses."""
        return self.answer_to(self.send(command, **arguments))

    def send(self, command: str, **arguments: Any) -> int:
        """Send a request and return its number, without waiting for the answer."""
        return self._write({"type": "request", "command": command, "arguments": arguments})

    def answer_to(self, number: int) -> Any:
        """Return the body of the answer to the request `number`."""
        answer = self.editor.wait_for(lambda: self._answers.get(number), f"an answer to request {number}")
        if not answer["success"]:
            raise RuntimeError(f"the adapter refused {answer['command']}: {answer.get('message')}")
        return answer.get("body", {})

    def start(self, command: str, configuration: Message) -> None:
        """Launch or attach with the configuration, and set breakpoints before the program runs."""
        self.request(
            "initialize",
            clientID="vscode",
            adapterID="debugpy",
            pathFormat="path",
            linesStartAt1=True,
            columnsStartAt1=True,
            supportsVariableType=True,
            supportsRunInTerminalRequest=True,
            supportsStartDebuggingRequest=True,
        )
        started = self.send(command, **configuration)
        self.editor.wait_for(lambda: self.initialized or self._answers.get(started), "the event `initialized`")
        for path, lines in self.editor.breakpoints.items():
            breakpoints = [{"line": line} for line in lines]
            self.request("setBreakpoints", source={"path": str(path)}, breakpoints=breakpoints)
        self.request("setExceptionBreakpoints", filters=["uncaught"])
        self.request("configurationDone")
        self.answer_to(started)

    def close(self) -> None:
        """Close the connection and wait for the thread that reads from it."""
        self._on_close()
        self._thread.join()
        for stream in (self._reader, self._writer):
            with contextlib.suppress(OSError):
                stream.close()

    def _write(self, message: Message) -> int:
        with self._write_lock:
            message["seq"], self._next_number = self._next_number, self._next_number + 1
            data = json.dumps(message).encode()
            self._writer.write(b"Content-Length: %d\r\n\r\n" % len(data) + data)
            self._writer.flush()
        return message["seq"]

    def _read(self) -> None:
        try:
            while True:
                length = 0
                while (line := self._reader.readline()) not in (b"\r\n", b""):
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                if line == b"":
                    break
                self._handle(json.loads(self._reader.read(length)))
        except (OSError, ValueError):
            pass  # the connection was closed
        self.ended = True
        self.editor.notify("", None)

    def _handle(self, message: Message) -> None:
        body = message.get("body", {})
        if message["type"] == "response":
            self._answers[message["request_seq"]] = message
        elif message["type"] == "request":
            answer = self.editor.on_request(message["command"], message["arguments"])
            self._write(
                {
                    "type": "response",
                    "request_seq": message["seq"],
                    "command": message["command"],
                    "success": True,
                    "body": answer,
                }
            )
        elif message["event"] == "initialized":
            self.initialized = True
        elif message["event"] == "process":
            self.process_id = body.get("systemProcessId")
        elif message["event"] == "exited":
            self.exit_code = body["exitCode"]
        elif message["event"] == "terminated":
            self.ended = True
        elif message["event"] == "stopped":
            self.editor.stops.append(Stop(self, body))
        self.editor.notify(message.get("event", ""), body)


class Editor:
    """VS Code's part: starts a configuration, answers the adapter, keeps the sessions."""

    def __init__(self, workspace: Path, log: Path, timeout_s: float) -> None:
        self.workspace = workspace
        self.breakpoints: dict[Path, list[int]] = {}
        self.sessions: list[Session] = []
        self.stops: list[Stop] = []
        self.transcript: list[str] = []
        self._terminal_log = log
        self._deadline = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Editor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def debug(self, configuration: Message) -> Session:
        """Start debugging as F5 does: variables are filled in, nothing else is changed."""
        configuration = {
            "cwd": str(self.workspace),
            "python": [sys.executable],
            **self.substitute(configuration),
        }
        adapter = subprocess.Popen(
            [sys.executable, "-m", "debugpy.adapter"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=-1,
        )
        self._processes.append(adapter)
        assert adapter.stdin is not None and adapter.stdout is not None
        session = Session(self, adapter.stdout, adapter.stdin, adapter.wait)  # type: ignore[arg-type]
        self.sessions.append(session)
        session.start(configuration["request"], configuration)
        return session

    def substitute(self, value: Any) -> Any:
        """Return `value` with ${workspaceFolder} filled in, in every string that it holds."""
        if isinstance(value, str):
            return value.replace("${workspaceFolder}", str(self.workspace))
        if isinstance(value, list):
            return [self.substitute(item) for item in value]
        if isinstance(value, dict):
            return {key: self.substitute(item) for key, item in value.items()}
        return value

    def wait_for(self, condition: Callable[[], Any], what: str) -> Any:
        """Return the condition's value once it is true. Raises TimeoutError, with all that happened."""
        with self._changed:
            while not (value := condition()):
                exceptions = [stop.exception for stop in self.stops if stop.exception]
                if exceptions or not self._changed.wait(max(0.0, self._deadline - time.monotonic())):
                    raise TimeoutError(self._report(what, exceptions))
            return value

    def _report(self, what: str, exceptions: list[str]) -> str:
        why = f"the program raised {exceptions}" if exceptions else f"{self._timeout_s:.0f} s passed"
        happened = "\n".join(self.transcript[-60:])
        return f"no {what}: {why}\nterminal:\n{self.terminal()}\nadapter:\n{happened}"

    def wait_for_stops(self, count: int) -> list[Stop]:
        """Return the stops at breakpoints once there are `count`."""
        self.wait_for(lambda: len(self.stops) >= count, f"{count} stop(s)")
        return self.stops

    def wait_for_end(self) -> list[int | None]:
        """Wait until every session has ended; return the exit codes, the launched program's first."""
        self.wait_for(lambda: all(session.ended for session in self.sessions), "end of every session")
        return [session.exit_code for session in self.sessions]

    def terminal(self) -> str:
        """Return what the program printed."""
        return self._terminal_log.read_text(errors="replace") if self._terminal_log.exists() else ""

    def notify(self, event: str, body: Any) -> None:
        """Wake up whoever waits; called by the threads that read."""
        with self._changed:
            if event and body.get("category") != "telemetry":
                self.transcript.append(f"{event} {json.dumps(body)[:300]}")
            self._changed.notify_all()

    def on_request(self, command: str, arguments: Message) -> Message:
        """Do what the adapter asks of an editor and return the body of the answer."""
        self.transcript.append(f"{command} {json.dumps(arguments)[:300]}")
        if command == "runInTerminal":
            with self._terminal_log.open("ab") as log:
                process = subprocess.Popen(
                    arguments["args"],
                    cwd=arguments.get("cwd"),
                    env={**os.environ, **arguments.get("env", {})},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            self._processes.append(process)
            return {"processId": process.pid}
        if command == "startDebugging":
            # In a thread: this one has to read on, or the reporting session would stand still.
            configuration = arguments["configuration"]
            threading.Thread(target=self._attach, args=(arguments["request"], configuration), daemon=True).start()
        return {}

    def _attach(self, command: str, configuration: Message) -> None:
        address = configuration["connect"]
        connection = socket.create_connection((address["host"], address["port"]), timeout=10)
        connection.settimeout(None)

        def hang_up() -> None:
            with contextlib.suppress(OSError):  # the adapter may have done so before
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

        session = Session(self, connection.makefile("rb"), connection.makefile("wb"), hang_up)
        self.sessions.append(session)
        try:
            session.start(command, configuration)
        except (RuntimeError, OSError) as error:
            self.notify("attach failed", {"error": str(error)})

    def close(self) -> None:
        """End every process that debugging started, with its children, and nothing else."""
        ids = {process.pid for process in self._processes if process.poll() is None}
        ids |= {session.process_id for session in self.sessions if session.process_id and not session.ended}
        doomed: list[psutil.Process] = []
        for process_id in ids:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(process_id)
                doomed += [process, *process.children(recursive=True)]
        for process in doomed:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for started in self._processes:
            started.wait()
        for session in list(self.sessions):
            session.close()
