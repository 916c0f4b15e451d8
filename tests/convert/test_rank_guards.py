"""Which processes run a line: tests for the rank, written in the many ways in which scripts write them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from retrofit.analysis.scopes import own_nodes
from retrofit.training import read_project
from retrofit.training.distributed.ranks.rank_guards import MAIN, OTHERS, UNCLEAR, side_of

SCRIPT = """\
import os
import sys

import horovod.torch as hvd
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def is_main():
    if not dist.is_initialized():
        return True
    return dist.get_rank() == 0


class Trainer:
    def __init__(self, gpu):
        self.gpu = gpu
        self.is_first = int(os.environ["RANK"]) == 0
        self.writer = None
        if self.is_first:
            self.writer = open("log", "w")

    def fit(self, hits, is_best):
        EXAMPLE


def worker(gpu, args):
    rank = args.nr * args.gpus + gpu
    for i in range(2):
        EXAMPLE


mp.spawn(worker, nprocs=2)
Trainer(int(os.environ["LOCAL_RANK"])).fit([1], True)
"""


def side(folder: Path, *lines: str, function: str) -> str:
    """Return which processes run `here()` in these lines."""
    before, _, rest = SCRIPT.partition(f"def {function}")
    head, _, tail = rest.partition("        EXAMPLE\n")
    example = "".join(f"        {line}\n" for line in lines)
    text = f"{before}def {function}{head}{example}{tail}".replace("EXAMPLE", "pass")
    (folder / "train.py").write_text(text)
    analysis = read_project(folder / "train.py").analysis
    for scope in analysis.scopes():
        for node in own_nodes(scope.node):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "here":
                return side_of(analysis, scope, node)
    raise AssertionError("no call of here()")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["if gpu == 0:", "    here()"], MAIN),
        (["if rank == 0: here()"], MAIN),
        (["if not args.multi or (args.multi and rank % 4 == 0):", "    here()"], MAIN),
        (["if args.local_rank in [-1, 0]:", "    here()"], MAIN),
        (["if args.local_rank not in (-1, 0):", "    here()"], OTHERS),
        (["if args.local_rank != -1:", "    here()"], ""),
        (["if rank >= 0:", "    here()"], ""),
        (["if rank > 0:", "    here()"], OTHERS),
        (["if rank:", "    here()"], OTHERS),
        (["if is_main():", "    pass", "else:", "    here()"], OTHERS),
        (["main = dist.get_rank() == 0", "if not main:", "    continue", "here()"], MAIN),
        (["if args.distributed and rank != 0:", "    return", "here()"], MAIN),
        (["if args.debug and rank != 0:", "    return", "here()"], UNCLEAR),
        (["rank == 0 and here()"], MAIN),
        (["values = {name: os.environ[name] for name in names}", "if values['RANK'] == '0': here()"], MAIN),
        (["if int(os.getenv('OMPI_COMM_WORLD_RANK')) > 0: here()"], OTHERS),
        (["if hvd.rank() == 0: here()"], MAIN),
        (["if torch.linalg.matrix_rank(x) == 0: here()"], ""),
        (["if dist.get_world_size() > 1:", "    here()"], ""),
        (["if i == 0:", "    here()"], ""),
    ],
)
def test_rank_guard_in_a_spawned_function(lines: list[str], expected: str, tmp_path: Path) -> None:
    assert side(tmp_path, *lines, function="worker") == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["if self.gpu == 0:", "    here()"], MAIN),
        (["if self.is_first and is_best:", "    here()"], MAIN),
        (["if self.writer is not None:", "    here()"], MAIN),
        (["if self.writer:", "    here()"], MAIN),
        (["if is_best:", "    here()"], ""),
        (["for rank in hits:", "    if rank == 0:", "        here()"], ""),  # the place of a hit
    ],
)
def test_rank_guard_in_a_method(lines: list[str], expected: str, tmp_path: Path) -> None:
    assert side(tmp_path, *lines, function="fit") == expected
