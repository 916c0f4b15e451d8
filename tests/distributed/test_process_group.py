"""Joining and leaving the process group."""

from __future__ import annotations

import argparse
import os
import socket
import time
from dataclasses import replace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from rank_pool import fork_server
from torch.nn.parallel import DistributedDataParallel

from retrofit.distributed import (
    barrier,
    cleanup_distributed,
    get_device,
    get_rank,
    get_world_size,
    is_main_process,
    process_group,
    setup_distributed,
)
from retrofit.distributed.collectives import gather_objects, reduce_sum
from retrofit.distributed.output import answer_of_main, main_process_first
from retrofit.distributed.process.environment import DistributedEnvironment
from retrofit.distributed.process.process_group import get_local_rank, gpu_index, is_distributed


@pytest.fixture(autouse=True)
def _no_launcher_and_no_gpu(monkeypatch):
    for name in list(os.environ):
        if name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") or name.startswith(("RETROFIT_", "SLURM_")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    yield
    cleanup_distributed()


def test_without_a_launcher_nothing_happens():
    before = dict(os.environ)
    assert setup_distributed() == (0, 0, 1)
    assert setup_distributed(argparse.Namespace(distributed=False, epochs=3)) == (0, 0, 1)
    assert not dist.is_initialized()
    assert dict(os.environ) == before


def test_getters_outside_a_group():
    assert (get_rank(), get_local_rank(), get_world_size()) == (0, 0, 1)
    assert is_main_process() and not is_distributed()
    assert get_device() == torch.device("cpu")
    barrier()
    with main_process_first():
        pass
    cleanup_distributed()


@pytest.mark.parametrize(("rank", "is_main"), [("0", True), ("1", False)])
def test_before_the_group_is_joined_the_launcher_says_who_writes(rank, is_main, monkeypatch):
    for name, value in {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank}.items():
        monkeypatch.setenv(name, value)
    assert is_main_process() is is_main
    assert (get_rank(), get_world_size()) == (0, 1)


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_distributed_alone_is_a_real_group_of_one(how, monkeypatch):
    if how == "variable":
        monkeypatch.setenv("RETROFIT_DISTRIBUTED", "1")
    args = argparse.Namespace(distributed=True, local_rank=0) if how == "flag" else None
    assert setup_distributed(args) == (0, 0, 1)
    assert dist.is_initialized() and is_distributed() and dist.get_backend() == "gloo"
    total = torch.ones(3)
    dist.all_reduce(total)
    assert total.tolist() == [1, 1, 1]
    assert setup_distributed(args) == (0, 0, 1), "a second call keeps the group"
    cleanup_distributed()
    assert not dist.is_initialized()
    cleanup_distributed()


def test_two_groups_of_one_need_no_port(monkeypatch):
    monkeypatch.setenv("RETROFIT_DISTRIBUTED", "1")
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        taken.listen()
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        assert setup_distributed() == (0, 0, 1)
        cleanup_distributed()


@pytest.mark.parametrize(("local_rank", "num_visible"), [(0, 1), (1, 2), (3, 8)])
def test_each_local_rank_has_its_gpu(local_rank, num_visible):
    assert gpu_index(DistributedEnvironment(local_rank=local_rank), num_visible) == local_rank


def test_a_local_rank_without_a_gpu_is_an_error_with_a_remedy():
    with pytest.raises(ValueError) as caught:
        gpu_index(DistributedEnvironment(rank=2, local_rank=2, world_size=4, launcher="env"), 2)
    assert str(caught.value) == (
        "LOCAL_RANK=2 but only 2 visible GPU(s) on this node; start at most 2 processes here (--nproc_per_node=2), "
        "or widen CUDA_VISIBLE_DEVICES"
    )


def test_slurm_can_show_each_task_one_gpu():
    task = DistributedEnvironment(rank=3, local_rank=3, world_size=4, launcher="slurm")
    assert gpu_index(task, 1) == 0
    assert gpu_index(task, 4) == 3
    with pytest.raises(ValueError, match="LOCAL_RANK=3 but only 1 visible"):
        gpu_index(replace(task, launcher="env"), 1)


def test_nccl_on_a_machine_without_gpu_is_refused():
    with pytest.raises(ValueError, match=r"--dist_backend nccl needs a CUDA GPU .* use --dist_backend gloo"):
        setup_distributed(argparse.Namespace(distributed=True, dist_backend="nccl"))
    assert not dist.is_initialized()


def test_a_world_size_without_a_launcher_is_refused():
    with pytest.raises(ValueError, match=r"--world_size 4 but no launcher .* torchrun --nproc_per_node=4"):
        setup_distributed(argparse.Namespace(distributed=True, world_size=4))


def test_half_a_launcher_is_refused(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ValueError, match="half of a launcher's environment: RANK=0"):
        setup_distributed()


JOIN = """
import sys
from retrofit.distributed import *
try:
    print(setup_distributed(timeout_s=float(sys.argv[1])), get_world_size())
    cleanup_distributed()
except RuntimeError as error:
    sys.exit(f"RuntimeError: {error}")
"""


def join(launcher, folder, port, timeout_s):
    """Let rank 0 of two join at `port`; return its status, its error, and all that it printed."""
    (folder / "join.py").write_text(JOIN)
    place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_PORT": port, "MASTER_ADDR": "localhost"}
    ended = launcher.run(folder, "join.py", [timeout_s], **place)
    (status,), (output,) = ended["statuses"], ended["outputs"]
    return status, "".join(line for line in output.splitlines() if line.startswith("RuntimeError: ")), output


def test_a_port_in_use_is_named_with_a_remedy(launcher, tmp_path):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        status, text, output = join(launcher, tmp_path, port, "5")
    assert status == 1, output
    assert text.startswith(f"RuntimeError: port in use: rank 0 cannot listen on localhost:{port}")
    assert "set MASTER_PORT to a free port" in text and "torchrun --standalone" in text
    assert "Traceback" not in output


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return str(probe.getsockname()[1])


def test_missing_processes_are_an_error_that_says_where(launcher, tmp_path):
    port = free_port()
    status, text, output = join(launcher, tmp_path, port, "2")
    assert status == 1, output
    assert text.startswith(f"RuntimeError: rank 0 of 2 could not join the group at localhost:{port} within 2 s")


TWO_RANKS = """
import os
del os.environ["MASTER_ADDR"]
from retrofit.distributed import setup_distributed, cleanup_distributed
print(setup_distributed())
cleanup_distributed()
"""


def test_more_than_one_process_is_distributed_without_the_flag_and_says_so(launcher, tmp_path):
    (tmp_path / "program.py").write_text(TWO_RANKS)
    ended = launcher.run(tmp_path, "program.py", [], 2)
    assert ended["statuses"] == [0, 0], ended["outputs"]
    lines = [text.splitlines() for text in ended["outputs"]]
    notice = "notice: started with WORLD_SIZE=2: training is distributed (--distributed says so)"
    assert lines[0].count(notice) == 1 and notice not in lines[1], "rank 0 alone says it"
    assert "(0, 0, 2)" in lines[0] and "(1, 1, 2)" in lines[1]


def run_many_jobs(folder, rank):
    """Join and leave a group of two again and again; a task of a process of its own."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    for job in range(150):
        setup_distributed(init_method=f"file://{folder}/{job}")
        model = DistributedDataParallel(torch.nn.Linear(1, 1)) if job % 2 else None
        dist.all_gather_object([None, None], job)
        cleanup_distributed()
        del model


def test_a_job_ends_right_after_a_collective(tmp_path):
    """With torch 2.1 one job in 50 hung here: gloo's thread still had a tensor of the collective."""
    ranks = [fork_server().Process(target=run_many_jobs, args=(str(tmp_path), rank)) for rank in range(2)]
    try:
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(timeout=120)
        assert [process.exitcode for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
            process.join()


def who_goes_first():
    with main_process_first():
        if is_main_process():
            time.sleep(0.3)  # long enough for the others to overtake, if they could
        entered = time.monotonic()
    return entered


def test_the_main_process_goes_first(ranks):
    for _ in range(3):
        first, second = ranks(2).run(who_goes_first)
        assert first < second, "rank 1 entered the block before rank 0 had left it"


def fail(path):
    raise FileNotFoundError(path)


def what_questions_give():
    answers = []
    with main_process_first():
        for function, argument in ((fail, "a"), (str, get_rank())) if is_main_process() else ((str, 0), (fail, "a")):
            try:
                answers.append(answer_of_main(function, argument))
            except (FileNotFoundError, RuntimeError) as error:
                answers.append(f"{type(error).__name__}: {error}")
    return answers


def test_in_a_rank_ordered_block_all_ranks_get_the_answer_of_rank_0(ranks):
    of_main, of_other = ranks(2).run(what_questions_give)
    assert of_main == ["FileNotFoundError: a", "0"]
    assert of_other == ["0", "RuntimeError: fail failed on rank 0: FileNotFoundError: a"]


def test_one_process_runs_a_rank_ordered_block_as_usual():
    with main_process_first():
        barrier()


def what_a_turn_takes():
    calls, error = [], ""
    with main_process_first():
        with main_process_first():
            calls.append(answer_of_main(dict, asked="by both")["asked"])
        if not is_main_process():
            calls.append(answer_of_main(str, "asked by itself"))
        try:
            barrier()
        except RuntimeError as raised:
            error = str(raised)
    return calls, error, reduce_sum([1.0])[0]


def test_a_collective_in_a_rank_ordered_block_is_an_error_and_not_a_hang(ranks):
    for rank, (calls, error, total) in enumerate(ranks(2).run(what_a_turn_takes)):
        assert calls == (["by both"] if rank == 0 else ["by both", "asked by itself"]) and total == 2.0
        assert error.startswith("barrier is called inside `with main_process_first():`")


def order_on_two_nodes():
    rank = get_rank()
    place = DistributedEnvironment(local_rank=rank % 2)
    with mock.patch.object(process_group, "_place", place), main_process_first():
        entered = time.monotonic()
        time.sleep(0.3 if rank % 2 == 0 else 0)
    return entered


def test_one_process_of_each_node_runs_before_the_others(ranks):
    first, neighbour, other_node, its_neighbour = ranks(4).run(order_on_two_nodes)
    assert first < other_node < min(neighbour, its_neighbour)


def failing_first():
    try:
        with main_process_first():
            if is_main_process():
                raise OSError("the server is down")
    except OSError:
        pass
    return gather_objects(get_rank())


def test_a_caught_error_of_the_first_rank_leaves_no_rank_waiting(ranks):
    assert ranks(2).run(failing_first) == [[0, 1]] * 2
