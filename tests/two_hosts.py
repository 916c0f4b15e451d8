"""Two hosts on one machine: two network namespaces with a network of their own between them. Linux, root, iproute2.

    with two_hosts() as hosts:
        server = hosts.popen(0, ["bash", "train_torchrun.sh"], env={...})
        hosts.slow_down(100, delay_ms=1)
        client = hosts.popen(1, [...])

The hosts know each other by the names node0 and node1. Only the network is apart: files, processes and the machine's
own name are shared.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ADDRESSES = ("10.77.0.1", "10.77.0.2")
HOST_NAMES = ("node0", "node1")
INTERFACES = ("eth7", "ens8")  # another name on each host, as on machines of different makes


def why_not() -> str | None:
    """Return why this machine cannot have two hosts, or None if it can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} not found (apt-get install iproute2)"
    try:
        with two_hosts():
            return None
    except RuntimeError as error:
        return str(error)


class TwoHosts:
    """Host 0 and host 1: `addresses`, `interfaces` and `host_names` by number. Made by `two_hosts`."""

    addresses, interfaces, host_names = ADDRESSES, INTERFACES, HOST_NAMES

    def __init__(self) -> None:
        self._names = [f"retrofit-{os.getpid()}-{number}" for number in (0, 1)]

    def popen(self, host: int, command: Sequence[str], **options: Any) -> subprocess.Popen:
        """Start a command on a host; `options` are those of subprocess.Popen. It ends with the hosts."""
        return subprocess.Popen(["ip", "netns", "exec", self._names[host], *command], **options)

    def slow_down(self, mbit_per_s: float, delay_ms: float = 0.0) -> None:
        """Let no more than `mbit_per_s` (10^6 bits per second) leave each host, each packet `delay_ms` late.

        A round trip takes twice the delay. A later call replaces the limit. Raises RuntimeError where the kernel lacks
        tbf, or netem, which the delay needs.
        """
        self.full_speed()
        # A bucket of 5 ms of data keeps short bursts near the rate; it must hold a packet of 64 KiB (offloading).
        burst = max(128 * 1024, int(mbit_per_s * 1e6 / 8 * 0.005))
        for name, interface in zip(self._names, INTERFACES):
            shape = ["qdisc", "add", "dev", interface, "root", "handle", "1:"]
            _run("tc", "-n", name, *shape, "tbf", "rate", f"{mbit_per_s}mbit", "burst", f"{burst}", "latency", "200ms")
            if delay_ms:
                late = ["qdisc", "add", "dev", interface, "parent", "1:1", "handle", "10:"]
                _run("tc", "-n", name, *late, "netem", "delay", f"{delay_ms}ms", "limit", "100000")

    def full_speed(self) -> None:
        """Take the limit away."""
        for name, interface in zip(self._names, INTERFACES):
            with suppress(RuntimeError):  # there was none
                _run("tc", "-n", name, "qdisc", "del", "dev", interface, "root")

    def _make(self) -> None:
        named = "".join(f"{address} {name}\n" for address, name in zip(ADDRESSES, HOST_NAMES))
        for name in self._names:
            hosts = Path("/etc/netns", name, "hosts")  # `ip netns exec` shows it as /etc/hosts
            hosts.parent.mkdir(parents=True)
            hosts.write_text(f"127.0.0.1 localhost {socket.gethostname()}\n{named}")
            # No name server is within reach: asked there, the host's own answers at once that there is none.
            hosts.with_name("resolv.conf").write_text("nameserver 127.0.0.1\n")
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        one, other = self._names
        pair = ["link", "add", INTERFACES[0], "type", "veth", "peer", "name", INTERFACES[1], "netns", other]
        _run("ip", "-n", one, *pair)
        for name, interface, address in zip(self._names, INTERFACES, ADDRESSES):
            _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", interface)
            _run("ip", "-n", name, "link", "set", interface, "up")

    def _remove(self) -> None:
        for name in self._names:
            for _ in range(50):
                pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()
                for pid in pids:
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                if not pids:
                    break
                time.sleep(0.1)
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)  # the pair of interfaces goes with it
            shutil.rmtree(Path("/etc/netns", name), ignore_errors=True)
        with suppress(OSError):  # somebody else's
            Path("/etc/netns").rmdir()


@contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Make two hosts, and remove them and whatever still runs on them. Raises RuntimeError where it cannot."""
    hosts = TwoHosts()
    try:
        hosts._make()
        yield hosts
    finally:
        hosts._remove()


def _run(*command: str) -> None:
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode != 0:
        reason = ended.stderr.strip() or f"status {ended.returncode}"
        raise RuntimeError(f"`{' '.join(command)}` failed: {reason}; it needs root and a kernel that has this")
