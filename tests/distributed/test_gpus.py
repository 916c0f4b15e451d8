"""The GPU of a process, and the number of GPUs that it counts for."""

from __future__ import annotations

import pytest
import torch

import retrofit.distributed as rd
from retrofit.distributed import devices as gpus

NAMED = ["cuda:0", "cuda:1", torch.device("cuda:0"), torch.device("cuda", 1), 0, 1]
LEFT = ["cuda", "cpu", "mps:0", torch.device("cpu"), torch.device("cuda"), None, -1, True, torch.float32]


@pytest.fixture
def started(monkeypatch):
    """Make this process one of several, on a machine that says it has two GPUs: no test can rely on real ones."""

    def start(rank: int, world_size: int = 2) -> None:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
        for name, value in place.items():
            monkeypatch.setenv(name, str(value))

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    return start


def test_each_rank_gets_its_own_gpu_in_the_form_that_was_asked_for(started):
    for rank in (0, 1):
        started(rank)
        own = [f"cuda:{rank}"] * 2 + [torch.device("cuda", rank)] * 2 + [rank] * 2
        assert [rd.devices.own_device(device) for device in NAMED] == own
        assert [rd.devices.own_device(device) for device in LEFT] == LEFT
        assert rd.devices.own_device({"cuda:0": "cuda:0", "cuda:1": "cpu"}) == {
            "cuda:0": f"cuda:{rank}",
            "cuda:1": "cpu",
        }


def test_one_process_keeps_the_choice_of_the_script(started):
    for start in (lambda: None, lambda: started(0, 1)):
        start()
        assert [rd.devices.own_device(device) for device in NAMED] == NAMED
        assert [rd.devices.own_gpu_count(count) for count in (0, 1, 4)] == [0, 1, 4]


def test_each_of_several_processes_counts_as_one_gpu(started):
    started(1)
    assert [rd.devices.own_gpu_count(count) for count in (0, 1, 4, None, [0, 1])] == [0, 1, 1, None, [0, 1]]


def test_a_choice_that_does_not_count_is_named_once(started, capsys):
    gpus._notice.cache_clear()
    started(0)
    for _ in range(3):
        rd.devices.own_device("cuda:1")
    rd.devices.own_device("cuda:0")
    assert capsys.readouterr().out.count("notice: the script's choice of a GPU (cuda:1)") == 1


def test_a_process_without_a_gpu_is_told_so(started):
    started(2, 3)
    with pytest.raises(ValueError, match=r"LOCAL_RANK=2 but only 2 visible GPU\(s\)"):
        rd.devices.own_device("cuda:0")


def test_where_no_gpu_is_the_script_decides(started, monkeypatch):
    started(1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert [rd.devices.own_device(device) for device in NAMED] == NAMED
