"""Check MASTER_ADDR and find the network interface towards it, for processes.sh. Standard library only.

  python rendezvous.py MASTER_ADDR MASTER_PORT NODE_RANK TIMEOUT_S

Prints the network interface that leads to MASTER_ADDR (exit 0; an empty line if it is unknown), or what is wrong with
the address (exit 1). With NODE_RANK 0 the address must lead to this machine; any other node waits until
something listens there, TIMEOUT_S seconds at most.
"""

from __future__ import annotations

import array
import contextlib
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CONNECT_S = 5.0
SILENT_S = 3.0  # a wait this short, of machines started at about the same time, needs no message
SIOCGIFADDR = 0x8915


def resolve(host: str, port: int) -> tuple[int, Any]:
    """Return the address family and the socket address of `host`, those of IPv4 if it has both. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, _, _, _, address = sorted(found, key=lambda one: one[0] != socket.AF_INET)[0]
    return family, address


def own_address_towards(family: int, address: Any) -> str:
    """Return the address with which this machine reaches `address`, by its routes. Nothing is sent. Raises OSError."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0]).partition("%")[0]


def interface_with(address: str) -> str:
    """Return the name of the interface that has `address`; "" if none is found, or if it is the loopback."""
    name = next((name for name, own in _addresses() if own == address), "")
    return "" if name == "lo" or address.startswith("127.") or address == "::1" else name


def _addresses() -> Iterator[tuple[str, str]]:
    """Yield the interfaces of this machine with their addresses (Linux; nothing elsewhere)."""
    try:
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            for _, name in socket.if_nameindex():
                request = array.array("B", struct.pack("256s", name.encode()[:15]))
                with contextlib.suppress(OSError):  # it has no address of IPv4
                    fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
                    yield name, socket.inet_ntoa(request[20:24].tobytes())
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            packed, *_, name = line.split()
            yield name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(packed))
    except (OSError, ImportError):
        return


def leads_here(family: int, address: Any, port: int) -> bool:
    """Return whether a connection to `address` ends at a socket that this function opens on this machine."""
    with socket.socket(family) as listener, socket.socket(family) as client:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", port))
        listener.listen()
        client.settimeout(CONNECT_S)
        try:
            client.connect(address)
        except OSError:
            return False
    return True


def wait_for_listener(family: int, address: Any, timeout_s: float, say: Any) -> str | None:
    """Wait until something listens at `address`; return None, or the last error after `timeout_s`."""
    started, said = time.monotonic(), False
    while True:
        try:
            with socket.socket(family) as client:
                client.settimeout(CONNECT_S)
                client.connect(address)
            return None
        except OSError as error:
            reason = "no answer" if isinstance(error, socket.timeout) else error.strerror or str(error)
        waited = time.monotonic() - started
        if waited >= timeout_s:
            return reason
        if waited >= SILENT_S and not said:
            where = f"the machine with NODE_RANK=0 at {address[0]}:{address[1]}"
            say(f"waiting for {where} ({reason}), {timeout_s:g} s at most")
            said = True
        time.sleep(min(0.5, timeout_s - waited))


def problem_with(host: str, port: int, node_rank: int, timeout_s: float) -> tuple[str, str]:
    """Return what is wrong with the rendezvous ("" if nothing) and the interface that leads there ("" unknown)."""
    try:
        family, address = resolve(host, port)
    except OSError as error:
        return f"MASTER_ADDR={host} is not a name that this machine knows ({error.strerror}); use the IP address", ""
    try:
        interface = interface_with(own_address_towards(family, address))
    except OSError as error:
        remedy = "use the address of the machine with NODE_RANK=0 in a network that both are in (ip route)"
        return f"MASTER_ADDR={host} cannot be reached from here ({error.strerror}); {remedy}", ""
    if node_rank == 0:
        if not leads_here(family, address, port):
            own = ", ".join(f"{one} ({name})" for name, one in _addresses() if name != "lo") or "none"
            return (
                f"MASTER_ADDR={host} does not lead to this machine, which has NODE_RANK=0; its addresses are: {own}",
                "",
            )
        return "", interface
    reason = wait_for_listener(family, address, timeout_s, _say)
    if reason is not None:
        return (
            f"nothing listens at MASTER_ADDR={host}, port {port}, after {timeout_s:g} s ({reason}); check the address, "
            "that the script runs on the machine with NODE_RANK=0, that MASTER_PORT is the same there, and the firewall"
        ), ""
    return "", interface


def _say(message: str) -> None:
    print(f"[rendezvous] {message}", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    """Run the command of this file's docstring and return its exit status."""
    host, port, node_rank, timeout_s = arguments[0], int(arguments[1]), int(arguments[2]), float(arguments[3])
    problem, interface = problem_with(host, port, node_rank, timeout_s)
    print(problem or interface)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
