"""benchmarks/memory_per_rank.py: what two ranks hold is what the theory says, and what its page explains beyond."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
WIDTH, DEPTH = 64, 8  # a layer is an eighth of the model
TOLERANCE = 0.03  # shards are padded, and AdamW counts its steps
HAS_FSDP2 = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 6)


def measured(names: list[str]) -> dict[str, Any]:
    """Return the sums over the roles, by strategy and moment; a task."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        from memory_per_rank import all_variants, measure

        variants = {name: all_variants()[name] for name in names}
        found = {name: {"theory": one.theory(2), **measure(one, WIDTH, DEPTH)} for name, one in variants.items()}
    finally:
        sys.path.remove(str(BENCHMARKS))
    return {name: {moment: sum(held.values()) for moment, held in of.items()} for name, of in found.items()}


@pytest.mark.skipif(not HAS_FSDP2, reason=f"fully_shard needs torch 2.6, this is {torch.__version__}")
def test_ddp_and_fsdp_hold_what_the_theory_says(ranks: Any) -> None:
    names = ["DDP", "DDP, gradient_as_bucket_view", "FSDP SHARD_GRAD_OP", "FSDP FULL_SHARD"]
    for found in ranks(2).run(measured, names):
        ddp, view, grad_op, full = (found[name] for name in names)
        assert ddp["peak"] == pytest.approx(16 + 4, rel=TOLERANCE), "parameters, gradients, AdamW, and the buckets"
        assert ddp["between"] == pytest.approx(16, rel=TOLERANCE)
        assert [view["peak"], view["between"]] == pytest.approx([16, 16], rel=TOLERANCE)
        for sharded in (grad_op, full):
            assert sharded["between"] == pytest.approx(12 / 2, rel=TOLERANCE), "without gradients, DDP's over the ranks"
        assert full["theory"] < full["peak"] < full["theory"] + 2 * 8 / DEPTH + 0.5, "two layers whole at most"
        assert full["peak"] < grad_op["peak"] < view["peak"] < ddp["peak"]


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed (the extra [deepspeed])")
def test_each_stage_of_zero_holds_less(zero_ranks: Any) -> None:
    for found in zero_ranks(2).run(measured, ["ZeRO-1", "ZeRO-2", "ZeRO-3"]):
        first, second, third = found.values()
        assert first["peak"] == pytest.approx(4 + 4 + 12 / 2, rel=TOLERANCE), "masters of float32 parameters, too"
        assert first["between"] == second["between"] == pytest.approx(4 + 12 / 2, rel=TOLERANCE)
        assert third["between"] == pytest.approx((4 + 4 + 12) / 2, rel=TOLERANCE), "the gradients' shard stays"
        assert third["theory"] < third["peak"] < second["peak"] < first["peak"]
        on_the_way = 4 * (1 / 9 + 2 / 50)  # the largest parameter, and two buckets
        assert second["theory"] < second["peak"] < second["theory"] + on_the_way
