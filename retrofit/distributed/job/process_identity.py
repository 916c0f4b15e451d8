"""Name a process so that others can tell, later and from elsewhere, whether it is still there."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from pathlib import Path


@functools.lru_cache
def machine() -> str:
    """Return what two processes have in common that see each other's numbers: a boot of a kernel and a namespace."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def own_identity() -> dict[str, str | int]:
    """Return this process's identity, in plain values."""
    pid = os.getpid()
    return {"host": socket.gethostname(), "machine": machine(), "pid": pid, "started": _started(pid)}


def is_alive(identity: dict[str, str | int]) -> bool | None:
    """Return whether that process still runs; None for one of another machine, of which nothing can be seen here."""
    if identity.get("machine") != machine():
        return None
    pid = int(identity["pid"])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it belongs to another user, who may hide it
        return _started(pid) in ("gone", identity["started"])
    return _started(pid) == identity["started"]


def _started(pid: int) -> str:
    """Return when a process was started, which tells it from a later one with its number; "gone" if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except FileNotFoundError:
        return "gone" if Path("/proc/self/stat").exists() else ""
    except OSError:
        return ""
    return "gone" if fields[0] in "ZX" else fields[19]  # the state: a zombie waits for its parent to look
