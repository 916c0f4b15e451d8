"""The plan in the terminal: the table first, the recommendation last, where the eye is."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from retrofit.doctor.finding import size
from retrofit.plan.plan import Plan

from .text import BY_HAND, GAP, TITLES, columns, command_line, formulas, guide, rows

MAX_WIDTH = 132  # longer lines are hard to read


def print_plan(
    plan: Plan, script: str, arguments: Sequence[str], is_converted: bool, console: Console | None = None
) -> None:
    """Print a plan. Lines fit the terminal, 80 columns where there is none."""
    console = console or Console()
    width = min(console.width, MAX_WIDTH)
    console.print(_parts(plan), width=width)
    console.print(_table(plan, width), width=width)
    for line in [*formulas(plan), *_of_links(plan), *_of_data(plan), *_corrected(plan), *plan.notes, guide(plan)]:
        console.print(Text(line), width=width)
    console.print()
    choice = plan.choice
    if choice.prediction is None:
        console.print(Text(choice.reason, style="bold red"), width=width)
        return
    for one in plan.alternatives:
        how = BY_HAND.get(one.strategy.name, "")
        text = f"faster, and another training: {one.strategy.name}, {plan.speedup(one):.2f} times one GPU ({how})"
        console.print(Text(text), width=width)
    name = choice.prediction.strategy.name
    text = f"recommended: {name} on {choice.prediction.gpus} GPUs: {choice.reason}"
    console.print(Text(text, style="bold"), width=width)
    command = command_line(choice.prediction, script, arguments, plan.per_machine, is_converted)
    how = command or f"no command switches it on: {BY_HAND[name]}"
    console.print(Text(how, style="bold"), width=width, soft_wrap=True)


def _parts(plan: Plan) -> Text:
    alone = plan.alone
    parts = {
        "data": alone.loading, "forward and loss": alone.forward, "backward": alone.backward,
        "optimizer": alone.optimizer, "rest": alone.rest,
    }  # fmt: skip
    text = ", ".join(f"{name} {1e3 * seconds:.1f}" for name, seconds in parts.items())
    activations = alone.facts["activation_bytes"]
    counted = f"{size(activations)} of activations" if activations else "activations are not counted"
    state = size(alone.facts["optimizer_bytes"])
    kept = f"{size(alone.gradient_bytes)} of gradients, {state} of optimizer state, {counted}"
    samples = f" for {alone.samples:g} samples" if alone.samples else ""
    return Text(f"one process: {1e3 * alone.seconds:.1f} ms per step{samples} ({text}); {kept}\n")


def _table(plan: Plan, width: int) -> Table:
    table = Table(box=None, padding=(0, GAP, 0, 0), header_style="dim")
    cells = rows(plan)
    shown = columns(cells, width)
    for number in shown:
        table.add_column(TITLES[number], justify="left" if TITLES[number] == "strategy" else "right", no_wrap=True)
    before = cells[0][0]
    for row in cells:
        if row[0] != before:
            table.add_row()
        before = row[0]
        table.add_row(*(row[number] for number in shown))
    return table


def _of_links(plan: Plan) -> list[str]:
    lines: dict[str, list[int]] = {}
    for gpus, link in plan.links.items():
        rate = f"{1e-9 / link.beta:.3g} GB/s" if link.beta else "no limit"
        lines.setdefault(f"{link.name}: {link.alpha * 1e6:.0f} us per hop, {rate}", []).append(gpus)
    return [f"link of {', '.join(map(str, gpus))} GPUs: {name}" for name, gpus in lines.items()]


def _of_data(plan: Plan) -> list[str]:
    waits = {one.gpus: one for one in plan.predictions if one.strategy.name == "ddp"}
    found = [f"{1e3 * one.data:.1f} ms on {gpus}" for gpus, one in waits.items() if one.data > 0.05 * one.seconds]
    if not found:
        return []
    workers = plan.alone.num_workers
    return [f"a step waits for its batch with num_workers={workers}: {', '.join(found)}; more workers make it shorter"]


def _corrected(plan: Plan) -> list[str]:
    return [
        f"corrected by earlier runs of `plan --after`: {name} on {gpus} GPUs times {factor:.2f}"
        for gpus, factors in plan.corrected.items()
        for name, factor in factors.items()
    ]
