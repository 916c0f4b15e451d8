"""Words and cells of a plan, for the terminal and the file."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from retrofit.doctor.finding import size
from retrofit.plan.plan import Plan
from retrofit.plan.predict.prediction import Prediction

# Environment variables that switch a strategy on in a converted script; the others are changed by hand.
VARIABLES: dict[str, dict[str, str]] = {"ddp": {}, "fsdp": {"RETROFIT_STRATEGY": "fsdp"}}
BY_HAND = {
    "ddp, bf16 hook": "model.register_comm_hook(None, bf16_compress_hook)",
    "ddp, 4 batches": "model.no_sync() in three of four batches, the loss divided by 4",
    "fsdp, grad-op": "fully_shard(model, reshard_after_forward=False)",
    "zero2": "DeepSpeed, zero_optimization.stage 2",
}


def command_line(one: Prediction, script: str, arguments: Sequence[str], per_machine: int, is_converted: bool) -> str:
    """Return the command that starts a training as it was predicted; on several machines, that of each.

    Empty for a strategy that no command switches on.
    """
    name = one.strategy.name
    if name not in VARIABLES:
        return ""
    machines = -(-one.gpus // per_machine)
    several = f" --nnodes={machines} --node_rank=$RANK_OF_MACHINE --master_addr=$FIRST_MACHINE" if machines > 1 else ""
    start = "--standalone " if machines == 1 else ""
    each = -(-one.gpus // machines)
    ours = "".join(f"{variable}={value} " for variable, value in VARIABLES[name].items())
    command = f"{ours}torchrun {start}--nproc_per_node={each}{several} {shlex.join([script, *arguments])}"
    part = "--with fsdp " if name == "fsdp" else ""
    return command if is_converted else f"retrofit convert {shlex.quote(script)} {part}--write && {command}"


def rows(plan: Plan) -> list[list[str]]:
    """Return the table: a row for each prediction, each cell as text."""
    found = []
    for one in plan.predictions:
        fits = "" if plan.gpu_bytes is None else "yes" if plan.fits(one) else missing(plan, one)
        epoch, cost = plan.epoch_seconds(one), plan.epoch_cost(one)
        found.append(
            [
                str(one.gpus), one.strategy.name, f"{1e3 * one.seconds:.1f}",
                f"{1e3 * one.low:.1f}-{1e3 * one.high:.1f}", f"{one.rate:.0f}", f"{plan.speedup(one):.2f}",
                f"{plan.efficiency(one):.0%}", size(one.memory.total), fits,
                "" if epoch is None else duration(epoch), "" if cost is None else f"{cost:.3g}",
            ]
        )  # fmt: skip
    return found


TITLES = (
    "GPUs", "strategy", "step ms", "90 %", "samples/s", "speed-up", "of each", "memory", "fits", "epoch", "cost",
)  # fmt: skip
LESS_NEEDED = ("samples/s", "90 %", "cost", "epoch")  # are left out first where the terminal is narrow
GAP = 2  # spaces between columns


def columns(cells: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the numbers of the columns that have a content and fit in `width` characters."""
    shown = [number for number in range(len(TITLES)) if any(row[number] for row in cells)]
    for title in LESS_NEEDED:
        widths = [max(len(TITLES[number]), *(len(row[number]) for row in cells)) + GAP for number in shown]
        if sum(widths) <= width:
            break
        shown = [number for number in shown if TITLES[number] != title]
    return shown


def missing(plan: Plan, one: Prediction) -> str:
    assert plan.gpu_bytes is not None
    return f"{size(one.memory.total - plan.gpu_bytes)} too much"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def formulas(plan: Plan) -> list[str]:
    """Return the guides' two bounds in words, with the numbers that are put in."""
    first = plan.bounds[0]
    lines = [
        f"Amdahl's law, S = 1 / ((1 - P) + P / N) with P = {first.parallel:.2f} (loading, forward and backward are "
        "divided, optimizer and the rest are not), where all GPUs share the batch of one: "
        + ", ".join(f"{bound.amdahl:.2f} on {bound.ranks}" for bound in plan.bounds)
    ]
    lines.append(
        "without overlap, T = T_single / N + alpha + beta M with M = "
        f"{size(plan.alone.gradient_bytes)} of gradients: "
        + ", ".join(
            f"{1e3 * bound.seconds:.1f} ms on {bound.ranks} (alpha {1e3 * bound.alpha:.2f}, beta M "
            f"{1e3 * bound.transfer:.1f})"
            for bound in plan.bounds
        )
    )
    return lines


def guide(plan: Plan) -> str:
    """Return the guides' rule by the number of parameters, next to what the memory says."""
    millions = sum(plan.alone.facts["elements"]) / 1e6
    rule = "DDP" if millions < 1000 else "FSDP" if millions <= 10_000 else "FSDP with tensor and pipeline parallelism"
    return f"{millions:.1f} million parameters: by the guides' rule {rule}"
