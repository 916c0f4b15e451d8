"""The plan for programs: a dict that JSON can hold, times in seconds, sizes in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from retrofit.plan.plan import Plan
from retrofit.plan.predict.memory import largest_batch
from retrofit.plan.predict.prediction import Prediction, loading

from .text import BY_HAND, command_line

WORKERS = (0, 1, 2, 4, 8)


def card(plan: Plan, script: str, arguments: Sequence[str], is_converted: bool) -> dict[str, Any]:
    """Return everything that is known of a plan."""
    alone, choice = plan.alone, plan.choice
    chosen = choice.prediction
    return {
        "one_process": {
            "step_s": alone.seconds, "samples": alone.samples, "data_s": alone.loading, "forward_s": alone.forward,
            "backward_s": alone.backward, "optimizer_s": alone.optimizer, "rest_s": alone.rest,
            "gradient_bytes": alone.gradient_bytes, "optimizer_bytes": alone.facts["optimizer_bytes"],
            "activation_bytes": alone.facts["activation_bytes"], "batches_per_epoch": alone.batches_per_epoch,
        },
        "links": {
            str(gpus): {"name": link.name, "alpha_s": link.alpha, "beta_s_per_byte": link.beta}
            for gpus, link in plan.links.items()
        },
        "predictions": [_prediction(plan, one) for one in plan.predictions],
        "data_wait_s": {str(number): loading(alone, number, plan.per_machine) for number in WORKERS},
        "bounds": [asdict(bound) for bound in plan.bounds],
        "corrected": {str(gpus): factors for gpus, factors in plan.corrected.items()},
        "notes": plan.notes,
        "recommended": None if chosen is None else {
            "strategy": chosen.strategy.name, "gpus": chosen.gpus,
            "command": command_line(chosen, script, arguments, plan.per_machine, is_converted),
            "by_hand": BY_HAND.get(chosen.strategy.name, ""),
        },
        "reason": choice.reason,
    }  # fmt: skip


def _prediction(plan: Plan, one: Prediction) -> dict[str, Any]:
    largest = None if plan.gpu_bytes is None else largest_batch(one.memory, plan.alone.samples, plan.gpu_bytes)
    return {
        "strategy": one.strategy.name, "gpus": one.gpus, "step_s": one.seconds, "low_s": one.low, "high_s": one.high,
        "added_s": one.calls, "late_s": one.late, "data_s": one.data,
        "samples_per_s": one.rate, "speedup": plan.speedup(one), "efficiency": plan.efficiency(one),
        "memory_bytes": asdict(one.memory), "fits": plan.fits(one),
        "largest_batch": largest, "epoch_s": plan.epoch_seconds(one), "epoch_cost": plan.epoch_cost(one),
        "same_training": one.strategy.is_same,
    }  # fmt: skip
