"""Training on two hosts with a network between them: network namespaces, joined by a pair of interfaces."""

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
import torch
from image_folder import folder_options, make_images
from two_hosts import TwoHosts, two_hosts, why_not

from scripts.launch.rendezvous import interface_with, leads_here, own_address_towards, problem_with, resolve

ROOT = Path(__file__).resolve().parent.parent
TRAINING = ["--layers", "18", "--crop_size", "32", "--batchsize", "4", "--epochs", "1", "--val_epoch", "1"]
IMAGES = 80
DEADLINE_S = 300


@pytest.fixture
def hosts() -> Iterator[TwoHosts]:
    reason = why_not()
    if reason is not None:
        pytest.skip(f"no two hosts: {reason}")
    with two_hosts() as both:
        yield both


def start(hosts: TwoHosts, host: int, folder: Path, script: str, *arguments: str, **variables: str) -> subprocess.Popen:
    """Start a launch script on a host, with one process; its output goes to `folder`/<host>.txt."""
    unwanted = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK")
    environ = {key: value for key, value in os.environ.items() if key not in unwanted}
    environ.update({"NNODES": "2", "NODE_RANK": str(host), "MASTER_ADDR": hosts.addresses[0], "PYTHON": sys.executable})
    environ.update({"NPROC_PER_NODE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **variables})
    with (folder / f"{host}.txt").open("w") as output:
        command = ["bash", str(ROOT / script), *arguments]
        return hosts.popen(host, command, env=environ, cwd=folder, stdout=output, stderr=output)


def text_of(folder: Path, host: int) -> str:
    return (folder / f"{host}.txt").read_text()


def test_a_training_on_two_hosts(tmp_path: Path, hosts: TwoHosts) -> None:
    hosts.slow_down(1000)
    arguments = [*TRAINING, *folder_options(make_images(tmp_path / "data", 16)), "--workers", "0"]
    arguments += ["--logdir", str(tmp_path / "log")]
    # Each host keeps what it trained: rank 0's checkpoint is all that a run writes.
    keep = tmp_path / "sitecustomize.py"
    keep.write_text(KEEP_WEIGHTS)
    python_path = os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    nodes = [
        start(hosts, host, tmp_path, "train_torchrun.sh", *arguments, PYTHONPATH=python_path, KEEP=str(tmp_path))
        for host in (1, 0)  # the second one waits for the first
    ]
    statuses = [node.wait(DEADLINE_S) for node in nodes]
    assert statuses == [0, 0], text_of(tmp_path, 0) + text_of(tmp_path, 1)
    for host in (0, 1):
        name = hosts.interfaces[host]
        assert f"GLOO_SOCKET_IFNAME={name} NCCL_SOCKET_IFNAME=={name} " in text_of(tmp_path, host).replace("\\", "")
    assert "2 process(es), ddp, global batch 8" in text_of(tmp_path, 0)
    weights = [torch.load(tmp_path / f"weights_{rank}.pt", weights_only=True) for rank in (0, 1)]
    (checkpoint,) = tmp_path.glob("log/*/checkpoint_0001_00000000.pt")
    saved = torch.load(checkpoint, weights_only=True)["model"]
    for name, value in saved.items():
        if "running_" not in name:  # BatchNorm's statistics are each rank's own without --sync_bn
            assert torch.equal(value, weights[0][name]) and torch.equal(value, weights[1][name]), name


KEEP_WEIGHTS = """
import os, sys
if "RANK" in os.environ and "KEEP" in os.environ:
    import retrofit.distributed as rd
    leave, wrap, models = rd.cleanup_distributed, rd.distribute_model, []

    def wrap_and_remember(*arguments, **options):
        models.append(wrap(*arguments, **options))
        return models[-1]

    def keep_and_leave():
        import torch
        path = os.path.join(os.environ["KEEP"], f"weights_{rd.get_rank()}.pt")
        torch.save(rd.unwrap_model(models[0]).state_dict(), path)
        leave()

    rd.distribute_model, rd.cleanup_distributed = wrap_and_remember, keep_and_leave
"""


@pytest.mark.slow
def test_a_worker_killed_on_one_host_starts_again_on_both(tmp_path: Path, hosts: TwoHosts) -> None:
    training = [*TRAINING, "--model_type", "swin_mlp", *folder_options(make_images(tmp_path / "data", IMAGES))]
    arguments = [*training, "--workers", "0", "--chk_steps", "3", "--logdir", str(tmp_path / "log")]
    nodes = [start(hosts, host, tmp_path, "train_torchrun.sh", *arguments, MAX_RESTARTS="1") for host in (0, 1)]
    deadline = time.monotonic() + DEADLINE_S
    while not list(tmp_path.glob("log/*/checkpoint_0000_*.pt")):
        assert time.monotonic() < deadline and nodes[0].poll() is None, text_of(tmp_path, 0)
        time.sleep(0.05)
    children = psutil.Process(nodes[1].pid).children(recursive=True)
    next(child for child in children if child.environ().get("RANK") == "1").kill()
    assert [node.wait(DEADLINE_S) for node in nodes] == [0, 0], text_of(tmp_path, 0) + text_of(tmp_path, 1)
    assert "started again after a failure, continuing with" in text_of(tmp_path, 0)
    (checkpoint,) = tmp_path.glob("log/*/checkpoint_0001_00000000.pt")
    assert torch.load(checkpoint, weights_only=True)["scheduler"]["last_epoch"] == IMAGES // 8


def test_a_wrong_master_addr_is_an_error_within_its_timeout(tmp_path: Path, hosts: TwoHosts) -> None:
    started = time.monotonic()
    wrong = {"MASTER_ADDR": "10.77.0.9", "MASTER_TIMEOUT": "4"}
    nodes = [start(hosts, host, tmp_path, "train_torchrun.sh", **wrong) for host in (0, 1)]
    assert [node.wait(DEADLINE_S) for node in nodes] == [2, 2], text_of(tmp_path, 0) + text_of(tmp_path, 1)
    assert time.monotonic() - started < 60
    assert "MASTER_ADDR=10.77.0.9 does not lead to this machine, which has NODE_RANK=0" in text_of(tmp_path, 0)
    assert "10.77.0.1 (eth7)" in text_of(tmp_path, 0)
    assert "nothing listens at MASTER_ADDR=10.77.0.9, port 29500, after 4 s" in text_of(tmp_path, 1)
    elsewhere = start(hosts, 1, tmp_path, "train_torchrun.sh", MASTER_ADDR="192.0.2.1")
    assert elsewhere.wait(DEADLINE_S) == 2
    assert "MASTER_ADDR=192.0.2.1 cannot be reached from here (Network is unreachable)" in text_of(tmp_path, 1)


def test_the_test_hosts_are_removed(hosts: TwoHosts) -> None:
    left = hosts.popen(1, ["sleep", "1000"])
    hosts.slow_down(100)
    hosts.full_speed()
    hosts._remove()
    assert left.wait(10) == -9
    assert not [name for name in subprocess.check_output(["ip", "netns"], text=True).split() if name in hosts._names]


# ---- the pieces, on this machine ---------------------------------------------------------------------------


def test_loopback_does_not_reach_another_machine() -> None:
    family, address = resolve("127.0.0.1", 29500)
    assert own_address_towards(family, address) == "127.0.0.1"
    assert interface_with("127.0.0.1") == "" and interface_with("203.0.113.7") == ""


def test_an_unknown_host_name_is_an_error() -> None:
    problem, _ = problem_with("no-such-host.invalid", 29500, 1, 1.0)
    assert problem.startswith("MASTER_ADDR=no-such-host.invalid is not a name that this machine knows")


def test_a_node_waits_for_the_first_one() -> None:
    with socket.socket() as first:
        first.bind(("127.0.0.1", 0))
        port = first.getsockname()[1]
        late = threading.Timer(0.7, first.listen)
        late.start()
        assert problem_with("127.0.0.1", port, 1, 30.0) == ("", "")
        late.join()
    problem, _ = problem_with("127.0.0.1", port, 1, 0.2)
    assert "Connection refused" in problem and "the firewall" in problem
    assert leads_here(*resolve("127.0.0.1", port), port)
