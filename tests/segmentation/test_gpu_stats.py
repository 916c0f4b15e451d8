from __future__ import annotations

import time
from types import SimpleNamespace

import gpustat
import pytest
import torch

from segmentation.gpu_stats import gpu_scalars

NO_GPU = not torch.cuda.is_available()


@pytest.mark.skipif(not NO_GPU, reason="there is a GPU here")
def test_without_a_gpu_there_is_nothing_to_log_and_no_wait() -> None:
    with pytest.raises(
        Exception, match=r"NVML|libnvidia|[Dd]river"
    ):  # the real error, so that the test means something
        gpustat.new_query()
    started = time.perf_counter()
    assert gpu_scalars() == {}
    assert time.perf_counter() - started < 2.0


@pytest.mark.gpu
@pytest.mark.skipif(NO_GPU, reason="needs a CUDA GPU")
def test_with_a_gpu_memory_is_more_than_this_process_holds() -> None:
    held = torch.zeros(64 * 2**20, device="cuda")  # 256 MiB
    scalars = gpu_scalars()
    assert max(value for name, value in scalars.items() if name.endswith("/memory_mib")) >= 256
    del held


def test_names_and_units(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [
        SimpleNamespace(index=0, utilization=37, memory_used=1024),
        SimpleNamespace(index=3, utilization=0, memory_used=5),
    ]
    monkeypatch.setattr(gpustat, "new_query", lambda: SimpleNamespace(gpus=gpus))
    assert gpu_scalars() == {
        "gpu0/utilisation_percent": 37.0,
        "gpu0/memory_mib": 1024.0,
        "gpu3/utilisation_percent": 0.0,
        "gpu3/memory_mib": 5.0,
    }


def test_a_value_that_the_gpu_does_not_tell_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [SimpleNamespace(index=0, utilization=None, memory_used=9)]
    monkeypatch.setattr(gpustat, "new_query", lambda: SimpleNamespace(gpus=gpus))
    assert gpu_scalars() == {"gpu0/memory_mib": 9.0}
