"""Real gloo ranks for tests: processes that are started once per test session and world size, and then take tasks.

A task is a picklable top-level function; every rank runs it in a process group and the results come back in rank
order. A task that raises fails the test with the tracebacks of all ranks; one that does not end in time fails it with
the stacks of all ranks. After a failure the ranks are started anew.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Callable

START_TIMEOUT_S = 120.0  # imports of torch on a busy machine
TASK_TIMEOUT_S = 300.0
# What every rank needs, imported once in the process that all ranks of all pools are forked from; torch._dynamo is what
# the first optimizer imports. Nothing of this project is among it: its modules look at the environment themselves.
PRELOADED = ["torch", "torch._dynamo", "torch.distributed.fsdp", "torchvision", "tensorboardX", "rich.table"]


def fork_server() -> multiprocessing.context.ForkServerContext:
    """Return the context whose processes are forked from one that has imported torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


class RankError(AssertionError):
    """A task failed on some rank; the message holds every rank's traceback."""


class RankPool:
    """`world_size` processes joined by gloo, each with one thread."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._folder = Path()

    def run(self, task: Callable[..., Any], *args: Any, timeout_s: float = TASK_TIMEOUT_S) -> list[Any]:
        """Run `task(*args)` on every rank and return the results in rank order. Raises RankError."""
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((task, args))
        try:
            answers = self._collect(timeout_s)
        except RankError:
            self.stop()
            raise
        failures = [f"--- rank {rank}\n{text}" for rank, (good, text) in enumerate(answers) if not good]
        if failures:
            self.stop()
            raise RankError("\n".join(failures))
        return [value for _, value in answers]

    def stop(self) -> None:
        """End this pool's processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        self._processes, self._pipes = [], []
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="rank_pool_"))
        context = fork_server()
        for rank in range(self.world_size):
            ours, theirs = context.Pipe()
            place = (rank, self.world_size, str(self._folder))
            process = context.Process(target=_serve, args=(*place, theirs, dict(os.environ)), daemon=False)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        self._collect(START_TIMEOUT_S)

    def _collect(self, timeout_s: float) -> list[tuple[bool, Any]]:
        deadline = time.monotonic() + timeout_s
        answers: dict[int, tuple[bool, Any]] = {}
        while len(answers) < self.world_size:
            waiting = [pipe for rank, pipe in enumerate(self._pipes) if rank not in answers]
            ready = wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                raise RankError(f"no answer within {timeout_s} s\n{self._stacks(answers)}")
            for pipe in ready:
                rank = self._pipes.index(pipe)  # type: ignore[arg-type]
                try:
                    answers[rank] = pipe.recv()  # type: ignore[union-attr]
                except EOFError:
                    answers[rank] = (False, f"process ended with status {self._processes[rank].exitcode}")
                if not answers[rank][0]:
                    # Its peers may wait for it in a collective: give them a moment to notice, not the whole time.
                    deadline = min(deadline, time.monotonic() + 5.0)
        return [answers[rank] for rank in range(self.world_size)]

    def _stacks(self, answers: dict[int, tuple[bool, Any]]) -> str:
        for rank, process in enumerate(self._processes):
            if rank not in answers and process.is_alive():
                os.kill(process.pid, signal.SIGUSR1)
        time.sleep(0.5)
        texts = []
        for rank in range(self.world_size):
            stack = (self._folder / f"stack_{rank}").read_text() if rank not in answers else str(answers[rank][1])
            texts.append(f"--- rank {rank} ({'answered' if rank in answers else 'waiting'})\n{stack}")
        return "\n".join(texts)


def _serve(rank: int, world_size: int, folder: str, pipe: Connection, environment: dict[str, str]) -> None:
    os.environ.clear()  # it is that of the first pool's start
    os.environ.update(environment)
    with open(os.path.join(folder, f"stack_{rank}"), "w") as stack_file:
        faulthandler.register(signal.SIGUSR1, file=stack_file)
        import torch
        import torch.distributed as dist

        tempfile.tempdir = folder  # what tasks write goes with the pool
        torch.set_num_threads(1)
        store = dist.FileStore(os.path.join(folder, "store"), world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        pipe.send((True, None))
        while True:
            try:
                task, args = pipe.recv()
            except EOFError:
                break
            try:
                pipe.send((True, task(*args)))
            except BaseException:
                pipe.send((False, traceback.format_exc()))
            options = sys.modules.get("retrofit.distributed.process.options")
            if options is not None:
                options.forget_options()  # of the next task they are none
            batch = sys.modules.get("retrofit.distributed.data.batch")
            if batch is not None:
                for kept in (batch.batches_in_use, batch._ahead, batch._unused):
                    kept.clear()  # of a draw, which the next draw would end
        dist.destroy_process_group()
        sys.stdout.flush()
        os._exit(0)  # the interpreter's own exit after DDP can abort under load
