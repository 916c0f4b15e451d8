"""Check of the rendezvous port: it is free, and no outgoing connection will take it."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

from retrofit.doctor.finding import FAIL, OK, SKIP, WARN, Finding

IPV4_SETTINGS = Path("/proc/sys/net/ipv4")
DEFAULT_PORT = 29500
LAST_PORT = 65535


def chosen_port(option: int | None, master_port: str) -> int | str:
    """Return the port to check, or what is wrong with MASTER_PORT."""
    if option is not None:
        return option
    if not master_port:
        return DEFAULT_PORT
    port = int(master_port) if master_port.isascii() and master_port.isdigit() else 0
    return port if 1 <= port <= LAST_PORT else f"MASTER_PORT={master_port!r} is not a port"


def check_port(port: int | str, is_here: bool = True, settings: Path = IPV4_SETTINGS) -> Finding:
    """Check whether rank 0 can listen on `port`; `is_here` says whether rank 0 runs on this machine."""
    if isinstance(port, str):
        return Finding("port", FAIL, port, f"a number from 1 to {LAST_PORT}: export MASTER_PORT={DEFAULT_PORT}")
    name = f"port {port}"
    if not is_here:
        return Finding(name, SKIP, "MASTER_ADDR is another machine; run this there")
    error = listen_error(port)
    if error == errno.EADDRINUSE:
        remedy = f"torchrun --master_port={free_port_near(port)}, or --standalone, which picks one; or end that program"
        return Finding(name, FAIL, f"used by {owner(port)}", remedy)
    if error == errno.EACCES:
        return Finding(name, FAIL, "needs root", f"a port from 1024 on: export MASTER_PORT={DEFAULT_PORT}")
    if error:
        return Finding(
            name, FAIL, f"cannot be listened on: {errno.errorcode.get(error, error)}", "sudo ip link set lo up"
        )
    low, high = ephemeral_range(settings)
    if low <= port <= high and port not in reserved_ports(settings):
        value = f"free now, but among those that outgoing connections get ({low}-{high})"
        remedy = f"one below: --master_port={DEFAULT_PORT}; or sudo sysctl -w net.ipv4.ip_local_reserved_ports={port}"
        return Finding(name, WARN, value, remedy)
    return Finding(name, OK, "free")


def listen_error(port: int) -> int:
    """Return the error number of listening on `port` of every address, as rank 0 will, or 0."""
    for family, everywhere in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as server:
                # As torch does: a port with closing connections only is free.
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                server.bind((everywhere, port))
                server.listen(1)
                return 0
        except OSError as error:
            # Without IPv6 torch takes IPv4.
            if family == socket.AF_INET or error.errno in (errno.EADDRINUSE, errno.EACCES):
                return error.errno or errno.EINVAL
    return 0


def owner(port: int) -> str:
    """Return the process that listens on `port`: its id, user and command, as far as this user may see them."""
    import psutil

    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.Error:  # macOS lets only root ask
        return "another process (sudo ss -ltnp shows which)"
    mine = [one for one in connections if one.laddr and one.laddr.port == port]
    if mine and all(one.status == psutil.CONN_TIME_WAIT for one in mine):
        return "connections of an ended program, for another minute"
    for one in sorted(mine, key=lambda one: one.status != psutil.CONN_LISTEN):
        if one.pid:
            try:
                process = psutil.Process(one.pid)
                command = " ".join(process.cmdline())[:80] or process.name()
                return f"pid {one.pid} of {process.username()}: {command}"
            except psutil.Error:
                return f"pid {one.pid}"
    return "another user's process (sudo ss -ltnp shows which)"


def free_port_near(port: int) -> int:
    """Return the first free port after `port`."""
    candidates = [*range(port + 1, min(port + 200, LAST_PORT)), *range(DEFAULT_PORT, DEFAULT_PORT + 200)]
    return next((one for one in candidates if not listen_error(one)), DEFAULT_PORT)


def ephemeral_range(settings: Path = IPV4_SETTINGS) -> tuple[int, int]:
    """Return the first and the last port that the system gives to outgoing connections; (0, 0) when unknown."""
    try:
        low, high = (settings / "ip_local_port_range").read_text().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return 0, 0


def reserved_ports(settings: Path = IPV4_SETTINGS) -> set[int]:
    """Return the ports that outgoing connections do not get although they are in the range."""
    try:
        text = (settings / "ip_local_reserved_ports").read_text().strip()
    except OSError:
        return set()
    ports: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        ports.update(range(int(first), int(last or first) + 1))
    return ports
