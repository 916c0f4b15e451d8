"""Keys of a momentum encoder that a queue keeps are those of all ranks, whatever order its rows went through."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from convert.conversion import conversion, converted
from verify.projects.launch import Launcher

from retrofit.cli import main

SCRIPT = """\
import copy, os, sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(44, 4), torch.randn(44, 4)), batch_size=8)
query_net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8))
key_net = copy.deepcopy(query_net)
for p in key_net.parameters():
    p.requires_grad = False
queue = F.normalize(torch.randn(32, 8), dim=-1)
optimizer = torch.optim.SGD(query_net.parameters(), lr=0.1)


def train():
    global queue
    for a, b in loader:
        q = F.normalize(query_net(a), dim=-1)
        KEYS
        own, others = (q * k).sum(-1, keepdim=True), torch.mm(q, queue.t())
        out = torch.cat([own, others], dim=-1)
        loss = F.cross_entropy(out / 0.5, torch.zeros(a.size(0), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward(OPTION)
        optimizer.step()
        for p, m in zip(query_net.parameters(), key_net.parameters()):
            m.data.copy_(m.data * 0.9 + p.data * 0.1)
        KEPT


for epoch in range(2):
    train()
os.write(sys.stdout.fileno(), repr(next(query_net.parameters()).data).encode())
"""
PLAIN = "k = F.normalize(key_net(b), dim=-1)"
PERMUTED = (
    "order = torch.randperm(b.size(0))\n        k = key_net(b[order])\n        k = F.normalize(k[INVERSE], dim=-1)"
)
CAT = "queue = torch.cat((queue, k), dim=0)[k.size(0):]"

ROLLED = "queue = torch.roll(queue, k.size(0), 0)\n        queue[: len(k)] = k.detach()"


def script(keys: str = PLAIN, kept: str = CAT, option: str = "") -> str:
    return SCRIPT.replace("KEYS", keys).replace("KEPT", kept).replace("OPTION", option)


@pytest.mark.parametrize(
    "kept", [CAT, "queue = torch.cat([queue[len(k):], k])", "queue = torch.cat([k, queue])[:32]", ROLLED]
)
def test_keys_are_gathered_with_their_number(tmp_path: Path, kept: str) -> None:
    lines = converted(tmp_path, script(kept=kept))
    assert any("gather_batch(k" in line for line in lines)
    kept_lines = [line for line in lines if (line.startswith("queue") and "(k" in line) or "k.size" in line]
    counts = re.compile(r"rd\.loss\.batch_count\((k\.size\(0\)|len\(k\))\)")
    assert not any(
        "k.size(0)" in line or "len(k)" in line for line in map(lambda line: counts.sub("", line), kept_lines)
    )


@pytest.mark.parametrize("inverse", ["torch.argsort(order)", "order.argsort()"])
def test_a_permutation_that_is_undone_leaves_the_rows_in_their_order(tmp_path: Path, inverse: str) -> None:
    assert any("gather_batch(k)" in line for line in converted(tmp_path, script(PERMUTED.replace("INVERSE", inverse))))


@pytest.mark.parametrize(
    "keys",
    [
        PERMUTED.replace("INVERSE", "order"),
        PERMUTED.replace("INVERSE", "torch.argsort(torch.randperm(b.size(0)))"),
        PERMUTED.replace("INVERSE", "torch.argsort(order)").replace("(b.size(0))", "(b.size(0))[:4]"),
        PERMUTED.replace("INVERSE", "torch.argsort(order)").replace("key_net(b[order])", "key_net(b[order] + a)"),
        PERMUTED.replace("INVERSE", "torch.argsort(order, descending=True)"),
    ],
)
def test_rows_in_another_order_are_refused(tmp_path: Path, keys: str) -> None:
    assert conversion(tmp_path, script(keys)).refusals


def test_keys_whose_gradient_is_kept_are_refused(tmp_path: Path) -> None:
    assert conversion(tmp_path, script("k = F.normalize(query_net(b), dim=-1)", option="retain_graph=True")).refusals


def test_processes_keep_the_keys_of_one(tmp_path: Path, launcher: Launcher) -> None:
    for name in ("alone", "together"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(script(PERMUTED.replace("INVERSE", "torch.argsort(order)")))
    assert main(["convert", str(tmp_path / "together" / "train.py"), "--write"]) == 0
    (alone,) = launcher.run(tmp_path / "alone", "train.py", [])["outputs"]
    run = launcher.run(tmp_path / "together", "train.py", [], world_size=2, RETROFIT_BATCH="global")
    assert run["statuses"] == [0, 0], run["outputs"]
    together = next(output for output in run["outputs"] if "tensor" in output)
    assert weights(together) == pytest.approx(weights(alone), abs=2e-3)


def weights(output: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d\.\d+", output[output.index("tensor") :])]
