"""Fixtures for all tests: pools of real ranks, and a guard against tests that leave something behind."""

from __future__ import annotations

import multiprocessing.spawn  # noqa: F401  notes sys.executable, which is still that of this interpreter
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Callable

import pytest
from forked_python import ForkedPython
from rank_pool import RankPool
from verify.projects.launch import Launcher

# The longest files, which run first: none of them is left to one worker at the end.
LONGEST = (
    "test_interrupted_training.py", "test_pages.py", "test_converted_projects.py", "test_strategies.py",
    "test_vscode.py", "test_restarts.py", "test_verify_seeded_bugs.py", "test_verify_sound_projects.py",
    "test_verified.py", "test_reference_project.py", "test_zero.py", "test_same_training.py", "test_tasks.py",
    "test_documents.py", "test_watchdog.py", "test_two_hosts.py", "test_lesson.py", "test_bad_input.py",
    "test_models.py", "test_guide.py", "test_doctor.py", "test_odd_files.py", "test_trace_run.py",
    "test_async_save.py", "test_sharded_ema.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


@pytest.fixture(scope="session")
def _pools() -> Iterator[dict[int, RankPool]]:
    pools: dict[int, RankPool] = {}
    yield pools
    for pool in pools.values():
        pool.stop()


@pytest.fixture(scope="session")
def ranks(_pools: dict[int, RankPool]) -> Callable[[int], RankPool]:
    """`ranks(2).run(task, *args)` runs a task on two real gloo ranks."""

    def of_size(world_size: int) -> RankPool:
        return _pools.setdefault(world_size, RankPool(world_size))

    return of_size


@pytest.fixture(scope="session")
def zero_ranks() -> Iterator[Callable[[int], RankPool]]:
    """The same for tasks with DeepSpeed, in ranks of their own: what it changes in a process is no other test's."""
    pools: dict[int, RankPool] = {}
    yield lambda world_size: pools.setdefault(world_size, RankPool(world_size))
    for pool in pools.values():
        pool.stop()


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkedPython]:
    """`with forks.in_place():` forks what the block starts with sys.executable, or as `python` or `torchrun`."""
    with ForkedPython() as started:
        yield started


@pytest.fixture
def forked_python(forks: ForkedPython) -> Iterator[None]:
    """The same for the whole test."""
    with forks.in_place():
        yield


@pytest.fixture(scope="session")
def launcher(forks: ForkedPython) -> Iterator[Launcher]:
    """`launcher.run(folder, script, arguments)` runs a script in one or more processes, without a launcher's start."""
    with ExitStack() as stack:
        with forks.in_place():
            started = stack.enter_context(Launcher())
        yield started


@pytest.fixture(autouse=True)
def _leave_nothing() -> Iterator[None]:
    """Fail a test that leaves an environment variable, a thread or a process group behind."""
    environment, threads = dict(os.environ), set(threading.enumerate())
    yield
    changed = {key for key in {*os.environ, *environment} if os.environ.get(key) != environment.get(key)}
    changed -= {"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR"}  # torch sets the latter at the first optimizer step
    assert not changed, f"the test changed the environment: {sorted(changed)}"
    import torch.distributed as dist

    from retrofit.distributed import options

    assert not dist.is_initialized(), "the test left a process group behind"
    left = {thread.name for thread in threading.enumerate() if thread not in threads and not thread.daemon}
    assert not left, f"the test left threads running: {sorted(left)}"
    # A training that ended with an error keeps its options, as its process is about to end.
    options.forget_options()
