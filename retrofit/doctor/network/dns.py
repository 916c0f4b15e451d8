"""Checks of name resolution: this machine's host name, localhost and MASTER_ADDR."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from retrofit.doctor.finding import FAIL, OK, WARN, Finding, Plan
from retrofit.doctor.network.interfaces import Interface, is_loopback

DEADLINE_S = 10.0
SLOW_S = 2.0
LOOPBACK = "localhost"  # the name, and that of its check


@dataclass(frozen=True)
class Resolved:
    """The addresses of a name, in the system's order; `error` says why there are none."""

    addresses: tuple[str, ...] = ()
    error: str = ""
    seconds: float = 0.0


def resolve(name: str, deadline_s: float = DEADLINE_S) -> Resolved:
    """Return the addresses of `name`; a name server that does not answer is not waited for longer than `deadline_s`."""
    answers: list[Resolved] = []
    begin = time.monotonic()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            answers.append(Resolved((), str(error), time.monotonic() - begin))
        else:
            addresses = tuple(dict.fromkeys(str(one[4][0]).split("%")[0] for one in found))
            answers.append(Resolved(addresses, "", time.monotonic() - begin))

    # A daemon: getaddrinfo cannot be interrupted.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(deadline_s)
    return answers[0] if answers else Resolved((), f"no answer within {deadline_s:.0f} s", deadline_s)


def check_host_name(plan: Plan, name: str, resolved: Resolved, interfaces: Sequence[Interface]) -> Finding:
    """Check whether the host name resolves to this machine.

    Without that, `torchrun --standalone` waits for its timeout (seen with torch 2.15: the processes look for the
    first one under the host's name), and gloo falls back to the loopback.
    """
    title = "host name"
    line = f"echo '127.0.1.1 {name}' | sudo tee -a /etc/hosts"
    if plan.nnodes > 1:
        line = f"in /etc/hosts of every machine: THE.ADDRESS.OF.THIS {name}"
    if not resolved.addresses:
        value = f"{name!r} has no address ({resolved.error}); torchrun --standalone waits for its timeout"
        return Finding(title, FAIL, value, line)
    value = f"{name} is {', '.join(resolved.addresses)}"
    if not any(is_own(address, interfaces) for address in resolved.addresses):
        return Finding(title, FAIL, f"{value}, which is not an address of this machine", f"correct it: {line}")
    if resolved.seconds > SLOW_S:
        return Finding(title, WARN, f"{value}, after {resolved.seconds:.1f} s in the name server", line)
    if plan.nnodes > 1 and is_loopback(resolved.addresses[0]):
        return Finding(title, WARN, f"{value}: torchrun would send the other machines to themselves", line)
    return Finding(title, OK, value + (" (this machine only)" if is_loopback(resolved.addresses[0]) else ""))


def check_master_address(plan: Plan, address: str, resolved: Resolved, interfaces: Sequence[Interface]) -> Finding:
    """Check whether MASTER_ADDR, where all processes meet, is an address, and one that the other machines reach."""
    name = "MASTER_ADDR"
    if not address:
        if plan.nnodes > 1:
            remedy = "on every machine: export MASTER_ADDR=ADDRESS.OF.THE.FIRST (and MASTER_PORT)"
            return Finding(name, WARN, "not set, with several machines", remedy)
        return Finding(name, OK, "not set: the launcher chooses this machine")
    if not resolved.addresses:
        remedy = "export MASTER_ADDR=127.0.0.1 on one machine; on several the first one's address"
        return Finding(name, FAIL, f"{address!r} has no address ({resolved.error})", remedy)
    value = f"{address} is {resolved.addresses[0]}"
    own = is_own(resolved.addresses[0], interfaces)
    if own and is_loopback(resolved.addresses[0]) and plan.nnodes > 1:
        remedy = "export MASTER_ADDR=ADDRESS.OF.THE.FIRST, one that the others reach"
        return Finding(name, FAIL, f"{value}: each machine would wait for itself", remedy)
    if not own and plan.nnodes == 1:
        return Finding(
            name, WARN, f"{value}, another machine", "unset MASTER_ADDR for a training on this machine alone"
        )
    if resolved.seconds > SLOW_S:
        remedy = "export MASTER_ADDR as a number, or put the name into /etc/hosts"
        return Finding(name, WARN, f"{value}, after {resolved.seconds:.1f} s in the name server", remedy)
    return Finding(name, OK, f"{value}, {'this' if own else 'another'} machine")


def check_loopback(resolved: Resolved) -> Finding:
    """Check whether two processes of this machine reach each other over `localhost`."""
    name = LOOPBACK
    if not resolved.addresses:
        remedy = "echo '127.0.0.1 localhost' | sudo tee -a /etc/hosts"
        return Finding(name, FAIL, f"has no address ({resolved.error})", remedy)
    errors = {address: error for address in resolved.addresses if (error := connection_error(address))}
    if len(errors) == len(resolved.addresses):
        seen = "; ".join(f"{address}: {error}" for address, error in errors.items())
        return Finding(name, FAIL, f"no connection to this machine ({seen})", "sudo ip link set lo up")
    # Usual in containers without IPv6 but with ::1 in /etc/hosts; torch then takes the other address.
    without = f" ({', '.join(errors)} does not)" if errors else ""
    connecting = [address for address in resolved.addresses if address not in errors]
    return Finding(name, OK, f"{', '.join(connecting)} connects{without}")


def connection_error(address: str) -> str:
    """Return why a connection from this process to itself at `address` fails, or nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with contextlib.ExitStack() as sockets:
            server = sockets.enter_context(socket.socket(family, socket.SOCK_STREAM))
            server.bind((address, 0))
            server.listen(1)
            server.settimeout(2.0)
            sockets.enter_context(socket.create_connection(server.getsockname()[:2], timeout=2.0))
            sockets.enter_context(server.accept()[0])
    except OSError as error:
        return error.strerror or str(error)
    return ""


def is_own(address: str, interfaces: Sequence[Interface]) -> bool:
    """Return whether `address` is this machine's."""
    return is_loopback(address) or any(address in one.addresses for one in interfaces)
