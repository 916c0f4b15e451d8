"""Worked examples of scripts that `convert` refuses, before and after: for the terminal and docs/refusals.md."""

from __future__ import annotations

import difflib
from pathlib import Path

from .kinds import KINDS

FOLDER = Path(__file__).resolve().parent / "examples"
EXAMPLES = {
    "full-batch": (
        "The one batch cannot be split where a node needs its neighbours: every rank computes all of it, and its "
        "own part of the loss. That saves no time in the model; for large graphs sample them by a loader "
        "(`NeighborLoader`), which is split by its seed nodes."
    ),
    "reinforcement-learning": (
        "Each rank plays its part of the episodes, each with a seed of its own, so that two ranks never play the "
        "same. Figures over all episodes (the mean reward) are sums over the ranks."
    ),
    "lbfgs": (
        "The loss that the closure returns, and the gradients, are those of all samples: every rank takes the "
        "same decisions in the line search. The parts must have the same size."
    ),
    "carried-hidden-state": (
        "A rank reads its own parts of the text from the beginning to the end, so the state that it carries "
        "belongs to them."
    ),
    "in-batch-loss": (
        "The loss is computed on every rank over the embeddings of all ranks, with gradients; the batch size is "
        "that of all ranks together with `RETROFIT_BATCH=global`."
    ),
}
HEAD = """\
# Scripts that `convert` refuses, and what to do

`retrofit convert` refuses what it cannot split across ranks and stay right, with the line, the reason and what to do;
`retrofit rules CODE` lists all reasons of a rule. These are complete examples of what a person changes then: each
prints the same in one process as before, to the last digit, and the same losses in two (`RETROFIT_BATCH=global`).
`retrofit rules NAME` shows one in the terminal. Start them with `torchrun --standalone --nproc_per_node=2 NAME.py`.

Written by `python docs/make_rules.py` from `retrofit/rules/refusals/examples/`, which a test runs.
"""


def show_example(name: str) -> str:
    """Return an example as Markdown: for which refusals, the idea, the changed lines, the script before."""
    before, after = (
        (FOLDER / f"{name.replace('-', '_')}_{which}.py").read_text("utf-8") for which in ("before", "after")
    )
    kinds = [f"{kind.code} `{kind.name}`" for kind in KINDS.values() if name in kind.examples]
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), "before.py", "after.py", n=100)
    title = before.partition('"""')[2].partition('"""')[0]
    return (
        f"## {name}\n\n{title} Refused as {' and '.join(kinds)}.\n\n{EXAMPLES[name]}\n\n```diff\n{''.join(lines)}```\n"
    )


def page() -> str:
    """Return docs/refusals.md."""
    listed = "".join(f"- [{name}](#{name})\n" for name in EXAMPLES)
    return "\n".join([HEAD, listed, *map(show_example, EXAMPLES)])
