"""What `retrofit doctor` says about ports, names and interfaces, on machines whose network lacks something."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from doctor_machine import doctor_findings, finding_of, needs_root, needs_unshare, unshare_command

from retrofit.doctor.finding import FAIL, OK, SKIP, WARN, Plan
from retrofit.doctor.network import ports
from retrofit.doctor.network.dns import (
    Resolved,
    check_host_name,
    check_loopback,
    check_master_address,
    connection_error,
    resolve,
)
from retrofit.doctor.network.interfaces import (
    Interface,
    check_gloo_interface,
    check_interfaces,
    check_nccl_interface,
    nccl_interfaces,
    read_interfaces,
)

HERE, TWO_MACHINES = Plan(2, 4), Plan(2, 4, nnodes=2)
LO = Interface("lo", True, ("127.0.0.1", "::1"))
ETH = Interface("eth0", True, ("10.0.0.5", "fe80::1"))
IB = Interface("ib0", True, ("10.1.0.5",))
DOCKER = Interface("docker0", True, ("172.17.0.1",))
DOWN = Interface("eth1", False, ("10.0.1.5",))
BARE = Interface("eth2", True, ())


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        yield server.getsockname()[1]


def test_a_port_in_use_is_found_with_its_user_and_another_port(taken_port: int) -> None:
    found = ports.check_port(taken_port)
    assert found.status == FAIL and f"pid {os.getpid()} of {psutil.Process().username()}" in found.value
    other = int(found.remedy.split("--master_port=")[1].split(",")[0])
    assert other != taken_port and ports.check_port(other).status in (OK, WARN)


def _closing_port(reuse: int) -> int:
    """Return a port with a connection in TIME_WAIT."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            server.accept()[0].close()  # the side that closes first keeps the port
    return port


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="as Linux has it")
def test_a_port_whose_last_connection_is_closing() -> None:
    # Torch's own ports are free at once; those of a program that did not ask for that are not.
    assert ports.listen_error(_closing_port(reuse=1)) == 0
    found = ports.check_port(_closing_port(reuse=0))
    assert found.status == FAIL and "ended program, for another minute" in found.value


def test_a_port_of_the_ephemeral_range(tmp_path: Path) -> None:
    (tmp_path / "ip_local_port_range").write_text("20000\t60999\n")
    found = ports.check_port(ports.free_port_near(29500), settings=tmp_path)
    assert found.status == WARN and "20000-60999" in found.value and "ip_local_reserved_ports" in found.remedy
    (tmp_path / "ip_local_reserved_ports").write_text("80,29000-30000\n")
    assert ports.check_port(ports.free_port_near(29500), settings=tmp_path).status == OK


def test_the_port_that_is_looked_at() -> None:
    assert ports.chosen_port(None, "") == 29500
    assert ports.chosen_port(None, "12345") == 12345
    assert ports.chosen_port(23456, "12345") == 23456
    for wrong in ("abc", "0", "70000", "-1", "²"):
        found = ports.check_port(ports.chosen_port(None, wrong))
        assert found.status == FAIL and repr(wrong) in found.value


def test_the_port_of_another_machine_is_not_judged() -> None:
    assert ports.check_port(29500, is_here=False).status == SKIP


PRIVILEGED = """
import os
from retrofit.doctor.network.ports import check_port
os.setuid(54321)
check_port(81)
"""


@needs_root
@needs_unshare
def test_a_port_that_only_root_may_use() -> None:
    before = "ip link set lo up; echo 1024 > /proc/sys/net/ipv4/ip_unprivileged_port_start"
    found = finding_of(PRIVILEGED, before, "-n")
    assert found.status == FAIL and found.value == "needs root"


LOCALHOST = """
from retrofit.doctor.network.dns import *
check_loopback(resolve("localhost"))
"""


@needs_unshare
def test_a_machine_without_loopback() -> None:
    found = finding_of(LOCALHOST, "true", "-n")
    assert found.status == FAIL and found.remedy == "sudo ip link set lo up"
    assert finding_of(LOCALHOST, "ip link set lo up", "-n").status == OK  # the remedy helps


def test_one_address_of_localhost_is_enough() -> None:
    assert check_loopback(Resolved(("127.0.0.1",))).status == OK
    found = check_loopback(Resolved(("192.0.2.77", "127.0.0.1")))  # a documentation address, nobody's
    assert found.status == OK and found.value == "127.0.0.1 connects (192.0.2.77 does not)"
    assert connection_error("192.0.2.77") != ""
    found = check_loopback(Resolved((), "unknown"))
    assert found.status == FAIL and "/etc/hosts" in found.remedy


HOST_NAME = """
import socket
from retrofit.doctor.network.dns import *
from retrofit.doctor.network.interfaces import read_interfaces
check_host_name(Plan(), socket.gethostname(), resolve(socket.gethostname()), read_interfaces())
"""
OWN_HOSTS = "cp /etc/hosts {folder}/hosts; mount --bind {folder}/hosts /etc/hosts; hostname no-such-machine"


@needs_unshare
def test_a_host_name_without_an_address_and_the_remedy_for_it(tmp_path: Path) -> None:
    before = OWN_HOSTS.format(folder=tmp_path)
    found = finding_of(HOST_NAME, before, "-m --uts")
    assert found.status == FAIL and "'no-such-machine' has no address" in found.value
    cured = finding_of(HOST_NAME, f"{before}\n{found.remedy.replace('sudo ', '')}", "-m --uts")
    assert (cured.status, cured.value) == (OK, "no-such-machine is 127.0.1.1 (this machine only)")


@needs_unshare
def test_a_host_name_with_the_address_of_another_machine(tmp_path: Path) -> None:
    before = OWN_HOSTS.format(folder=tmp_path) + "; echo 192.0.2.77 no-such-machine >> /etc/hosts"
    found = finding_of(HOST_NAME, before, "-m --uts")
    assert found.status == FAIL and "192.0.2.77, which is not an address of this machine" in found.value


def test_a_host_name_of_the_loopback_is_enough_for_one_machine_only() -> None:
    resolved = Resolved(("127.0.1.1",))
    assert check_host_name(HERE, "box", resolved, [LO, ETH]).status == OK
    found = check_host_name(TWO_MACHINES, "box", resolved, [LO, ETH])
    assert found.status == WARN and "/etc/hosts of every machine" in found.remedy
    assert check_host_name(TWO_MACHINES, "box", Resolved(("10.0.0.5",)), [LO, ETH]).status == OK


def test_a_slow_name_server_is_a_warning() -> None:
    assert check_host_name(HERE, "box", Resolved(("10.0.0.5",), "", 6.0), [LO, ETH]).status == WARN


def test_a_silent_name_server_causes_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()

    def silent(*arguments: object, **options: object) -> list[object]:
        answer.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    begin = time.monotonic()
    resolved = resolve("box", deadline_s=0.2)
    answer.set()
    assert time.monotonic() - begin < 30
    assert resolved.addresses == () and "no answer within" in resolved.error


def test_names_are_resolved() -> None:
    assert "127.0.0.1" in resolve("127.0.0.1").addresses
    assert resolve("no-such-name.invalid").error
    error = resolve("a" * 300).error  # the codec refuses it before any lookup
    assert error and "no answer" not in error


@pytest.mark.parametrize(
    ("plan", "address", "resolved", "status", "words"),
    [
        (HERE, "", Resolved(), OK, "not set"),
        (TWO_MACHINES, "", Resolved(), WARN, "not set"),
        (HERE, "nowhere", Resolved((), "unknown"), FAIL, "has no address"),
        (HERE, "localhost", Resolved(("127.0.0.1",)), OK, "this machine"),
        (TWO_MACHINES, "localhost", Resolved(("127.0.0.1",)), FAIL, "wait for itself"),
        (TWO_MACHINES, "first", Resolved(("10.0.0.9",)), OK, "another machine"),
        (TWO_MACHINES, "first", Resolved(("10.0.0.5",)), OK, "this machine"),
        (HERE, "first", Resolved(("10.0.0.9",)), WARN, "another machine"),
        (TWO_MACHINES, "first", Resolved(("10.0.0.9",), "", 5.0), WARN, "name server"),
    ],
)
def test_the_masters_address(plan: Plan, address: str, resolved: Resolved, status: str, words: str) -> None:
    found = check_master_address(plan, address, resolved, [LO, ETH])
    assert found.status == status and words in found.value


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("", ["ib0"]),
        ("eth", ["eth0"]),
        ("=eth", []),
        ("=eth0,ib0", ["eth0", "ib0"]),
        ("^docker", ["lo", "eth0", "ib0"]),
        ("^=docker", ["lo", "eth0", "ib0", "docker0"]),
        ("eth1", []),  # it is down
        ("eth2", []),  # it has no address
    ],
)
def test_the_interfaces_that_nccl_takes(wanted: str, names: list[str]) -> None:
    assert [one.name for one in nccl_interfaces([LO, ETH, IB, DOCKER, DOWN, BARE], wanted)] == names


def test_nccl_prefers_real_interfaces() -> None:
    assert nccl_interfaces([LO, DOCKER, ETH], "") == [ETH]
    assert nccl_interfaces([LO, DOCKER], "") == [DOCKER]
    assert nccl_interfaces([LO, DOWN], "") == [LO]


def test_the_interface_of_nccl() -> None:
    assert check_nccl_interface(HERE, [LO], "", num_gpus=0).status == SKIP
    assert check_nccl_interface(HERE, [LO, ETH], "eth0", num_gpus=0).status == OK
    found = check_nccl_interface(HERE, [LO, ETH], "enp", num_gpus=0)
    assert found.status == FAIL and "there are: lo, eth0" in found.value
    found = check_nccl_interface(HERE, [LO, DOCKER], "", num_gpus=2)
    assert found.status == WARN and "bridge" in found.value
    assert check_nccl_interface(HERE, [LO], "", num_gpus=2).status == OK
    assert check_nccl_interface(TWO_MACHINES, [LO], "", num_gpus=2).status == WARN


def test_the_interface_of_gloo() -> None:
    machine = [LO, DOWN, ETH, DOCKER, BARE]
    assert check_gloo_interface(HERE, machine, "eth0", ()).status == OK
    assert check_gloo_interface(HERE, machine, "eth1", ()).status == FAIL  # it is down
    assert check_gloo_interface(HERE, machine, "eth2", ()).status == FAIL  # it has no address
    assert check_gloo_interface(HERE, machine, "eth", ()).status == FAIL  # gloo takes names, not prefixes
    found = check_gloo_interface(HERE, machine, "", ("10.0.0.5",))
    assert found.status == OK and found.value.startswith("eth0 (10.0.0.5)")
    found = check_gloo_interface(HERE, machine, "", ("127.0.1.1",))
    assert found.status == OK and found.value.startswith("lo ")
    found = check_gloo_interface(TWO_MACHINES, machine, "", ("127.0.1.1",))
    assert found.status == WARN and "export GLOO_SOCKET_IFNAME=eth0" in found.remedy
    assert check_gloo_interface(HERE, machine, "", ("172.17.0.1",)).status == WARN
    assert check_gloo_interface(HERE, [DOWN], "", ("10.0.0.5",)).status == FAIL


INTERFACES = """
from retrofit.doctor.network.interfaces import *
check_interfaces(Plan(2, 4, 2), read_interfaces())
"""
GLOO = """
from retrofit.doctor.network.interfaces import *
check_gloo_interface(Plan(), read_interfaces(), "", ("172.17.0.1",))
"""


def _can_make_interfaces() -> bool:
    command = [*unshare_command(), "-n", "sh", "-c", "ip link add docker0 type bridge"]
    return bool(unshare_command()) and subprocess.run(command, capture_output=True).returncode == 0


needs_interfaces = pytest.mark.skipif(not _can_make_interfaces(), reason="needs `ip link add` in a network of its own")


@needs_interfaces
def test_a_real_bridge_to_containers() -> None:
    before = "ip link set lo up; ip link add docker0 type bridge; ip addr add 172.17.0.1/16 dev docker0"
    found = finding_of(GLOO, f"{before}; ip link set docker0 up", "-n")
    assert found.status == WARN and found.value.startswith("docker0 (172.17.0.1)")


@needs_interfaces
def test_a_real_machine_with_ipv6_only() -> None:
    before = "ip link set lo up; ip link add eth7 type bridge; ip link set eth7 up"
    before += "; ip addr add 2001:db8::7/64 dev eth7 nodad"
    found = finding_of(INTERFACES, before, "-n")
    assert found.status == WARN and "IPv6 only" in found.value and "AF_INET6" in found.remedy
    found = finding_of(INTERFACES, f"{before}; ip addr add 192.0.2.7/24 dev eth7", "-n")
    assert (found.status, found.value) == (OK, "eth7 192.0.2.7")


@needs_unshare
def test_a_real_machine_that_other_machines_cannot_reach() -> None:
    found = finding_of(INTERFACES, "ip link set lo up", "-n")
    assert found.status == FAIL and "--network=host" in found.remedy
    assert check_interfaces(HERE, [LO]).status == OK


def test_the_interfaces_of_this_machine_are_read() -> None:
    loopbacks = [one for one in read_interfaces() if "127.0.0.1" in one.addresses]
    assert len(loopbacks) == 1 and loopbacks[0].is_loopback


@needs_unshare
def test_a_machine_without_loopback_causes_no_wait() -> None:
    found = doctor_findings(before="true", namespaces="-n", timeout_s=300)
    assert found["localhost"]["status"] == found["gloo interface"]["status"] == FAIL
    assert found["all-reduce"]["status"] == SKIP and "localhost" in found["all-reduce"]["value"]
