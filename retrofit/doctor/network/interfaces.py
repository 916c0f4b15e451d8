"""Checks of network interfaces: those that gloo and NCCL would use, and those that variables ask for."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from retrofit.doctor.finding import FAIL, OK, SKIP, WARN, Finding, Plan

# Bridges between the machine and its own containers and virtual machines: other machines are not reached over them.
VIRTUAL = ("docker", "virbr", "br-", "veth", "cni", "podman", "lxcbr", "lxdbr", "vmnet", "flannel", "cali")


@dataclass(frozen=True)
class Interface:
    """A network interface and its internet addresses."""

    name: str
    is_up: bool
    addresses: tuple[str, ...]

    @property
    def is_loopback(self) -> bool:
        """Whether it leads to this machine itself."""
        return self.name == "lo" or any(is_loopback(address) for address in self.addresses)

    @property
    def is_virtual(self) -> bool:
        """Whether it leads to containers and virtual machines of this machine."""
        return self.name.startswith(VIRTUAL)


def read_interfaces() -> list[Interface]:
    """Return this machine's interfaces, in the system's order."""
    import psutil

    states = psutil.net_if_stats()
    families = (socket.AF_INET, socket.AF_INET6)
    return [
        Interface(
            name,
            bool(states[name].isup) if name in states else False,
            tuple(one.address.split("%")[0] for one in addresses if one.family in families),
        )
        for name, addresses in psutil.net_if_addrs().items()
    ]


def is_loopback(address: str) -> bool:
    """Return whether `address` is a loopback address."""
    return address.startswith("127.") or address == "::1"


def check_interfaces(plan: Plan, interfaces: Sequence[Interface]) -> Finding:
    """Check whether this machine has an address that another one reaches, and one of IPv4."""
    name = "network interfaces"
    usable = [one for one in interfaces if one.is_up and one.addresses and not one.is_loopback]
    value = ", ".join(f"{one.name} {_first(one)}" for one in usable) or "none but the loopback"
    if not usable and plan.nnodes > 1:
        return Finding(name, FAIL, f"{value}, with several machines", "in a container: docker run --network=host")
    if usable and not any("." in address for one in usable for address in one.addresses):
        remedy = "give MASTER_ADDR as an IPv6 address, and export NCCL_SOCKET_FAMILY=AF_INET6"
        return Finding(name, WARN, f"{value} (IPv6 only)", remedy)
    return Finding(name, OK, value)


def check_gloo_interface(plan: Plan, interfaces: Sequence[Interface], wanted: str, host: Sequence[str]) -> Finding:
    """Check whether gloo finds the interface that GLOO_SOCKET_IFNAME names, or picks a good one by the host's name.

    `host` holds the addresses that the host's name has; gloo takes the first one that is this machine's, and the
    loopback when there is none.
    """
    name = "gloo interface"
    if wanted:
        missing = [one for one in wanted.split(",") if one not in _with_address(interfaces)]
        if missing:
            return _missing(name, "GLOO_SOCKET_IFNAME", wanted, missing, interfaces)
        picked = [one for one in interfaces if one.name in wanted.split(",")]
        return _judge(name, plan, picked, f"GLOO_SOCKET_IFNAME={wanted}", "GLOO_SOCKET_IFNAME", interfaces)
    picked = [one for address in host for one in interfaces if address in one.addresses and one.is_up][:1]
    # All of 127.0.0.0/8 is the loopback's, also 127.0.1.1.
    picked = picked or [one for one in interfaces if one.is_loopback and one.is_up and one.addresses]
    return _judge(name, plan, picked, "by the host's name", "GLOO_SOCKET_IFNAME", interfaces)


def check_nccl_interface(plan: Plan, interfaces: Sequence[Interface], wanted: str, num_gpus: int) -> Finding:
    """Check whether NCCL finds the interfaces that NCCL_SOCKET_IFNAME describes, or picks good ones."""
    name = "NCCL interface"
    if not wanted and not num_gpus:
        return Finding(name, SKIP, "not used without a GPU")
    picked = nccl_interfaces(interfaces, wanted)
    if wanted and not picked:
        return _missing(name, "NCCL_SOCKET_IFNAME", wanted, [wanted], interfaces)
    return _judge(
        name, plan, picked, f"NCCL_SOCKET_IFNAME={wanted}" if wanted else "by itself", "NCCL_SOCKET_IFNAME", interfaces
    )


def nccl_interfaces(interfaces: Sequence[Interface], wanted: str) -> list[Interface]:
    """Return the interfaces that NCCL takes.

    `wanted` is a list of prefixes: `eth,ib`; `=eth0` is that exact name, `^docker` all but these. Without it NCCL
    prefers InfiniBand's, then any but docker's and the loopback:
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    usable = [one for one in interfaces if one.is_up and one.addresses]
    if not wanted:
        for choice in ("ib", "^docker,lo,virbr", "docker", "lo"):
            if picked := nccl_interfaces(usable, choice):
                return picked
        return []
    without, exact = wanted.startswith("^"), wanted.lstrip("^").startswith("=")
    names = wanted.lstrip("^=").split(",")

    def is_named(one: Interface) -> bool:
        return any(one.name == name if exact else one.name.startswith(name) for name in names)

    return [one for one in usable if is_named(one) != without]


def _judge(
    name: str, plan: Plan, picked: Sequence[Interface], why: str, variable: str, interfaces: Sequence[Interface]
) -> Finding:
    if not picked:
        remedy = "bring one up: sudo ip link set lo up"
        return Finding(name, FAIL, f"none that is up and has the address ({why})", remedy)
    first = picked[0]
    value = f"{', '.join(one.name for one in picked)} ({_first(first)}), chosen {why}"
    better = [
        one.name for one in interfaces if one.is_up and one.addresses and not one.is_loopback and not one.is_virtual
    ]
    remedy = f"export {variable}={better[0] if better else 'NAME'}, on every machine its own"
    if first.is_virtual:
        return Finding(name, WARN, f"{value}: a bridge to containers of this machine", remedy)
    if first.is_loopback and plan.nnodes > 1:
        return Finding(name, WARN, f"{value}: other machines are not reached over the loopback", remedy)
    return Finding(name, OK, value)


def _missing(name: str, variable: str, wanted: str, missing: Sequence[str], interfaces: Sequence[Interface]) -> Finding:
    there = ", ".join(_with_address(interfaces)) or "none"
    value = (
        f"{variable}={wanted}, but {', '.join(missing)} is not there, or down, or has no address; there are: {there}"
    )
    return Finding(name, FAIL, value, f"unset {variable}, or name one of those")


def _with_address(interfaces: Sequence[Interface]) -> list[str]:
    return [one.name for one in interfaces if one.is_up and one.addresses]


def _first(interface: Interface) -> str:
    return next((one for one in interface.addresses if "." in one), (interface.addresses or ("no address",))[0])
