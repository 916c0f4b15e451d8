"""Worked examples of scripts that `convert` refuses, before and after: for the terminal and docs/refusals.md."""

from __future__ import annotations

import difflib
from pathlib import Path

from .kinds import KINDS, WITHOUT_LINES

FOLDER = Path(__file__).resolve().parent / "examples"
SUBJECTS = {  # the folders of the examples
    "samples": "Where the samples come from",
    "losses": "Losses and layers over the whole batch",
    "steps": "The step of the optimizer",
    "models": "Which model is trained, and how it is run",
}
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
    "carried-hidden-state": (
        "A rank reads its own parts of the text from the beginning to the end, so the state that it carries "
        "belongs to them."
    ),
    "unknown-iterator": (
        "The library gives the same samples on every rank, so each rank takes every N-th one of them, from its own "
        "number on, and its part of them for each step."
    ),
    "several-loaders": (
        "The loaders of the training are sharded where they are made, that of the check is not: every rank runs all "
        "of the check."
    ),
    "in-batch-loss": (
        "The loss is computed on every rank from the embeddings of all ranks, with gradients, and all ranks draw the "
        "same negatives. The batch is that of all ranks together with `RETROFIT_BATCH=global`."
    ),
    "samples-kept": (
        "What goes into the queue is gathered from all ranks, in the order of one process, so every rank has the "
        "same queue."
    ),
    "batch-statistics": (
        "The statistic of a batch is the mean over the ranks, with gradients, as synchronised batch normalisation "
        "has it."
    ),
    "configured-loss": (
        "A table of classes in the script says which losses there can be, and the configuration names one of them: "
        "now it can be read that each is a mean. `convert` takes the script as it is then."
    ),
    "renormalised-embedding": (
        "All rows are scaled after each step, and once before the first, in place of those that a batch looks up. "
        "That is the same training where the optimizer leaves the other rows as they are, as SGD does."
    ),
    "lbfgs": (
        "The loss that the closure returns, and the gradients, are those of all samples: every rank takes the "
        "same decisions in the line search. The parts must have the same size."
    ),
    "skipped-step": (
        "All ranks leave out a step if the batch of all of them has nothing to train on. A rank without such samples "
        "runs the model as well: its sum is 0, and the count is that of all ranks."
    ),
    "evaluated-by-batch": (
        "All ranks make the test as soon as one of them has a hard sample. So they can split the test among them."
    ),
    "meta-learning": (
        "Each rank has whole tasks, and learns them by itself. The gradients of the outer loss are averaged over the "
        "ranks after `backward()`, as the model is not called as a whole and cannot be wrapped."
    ),
    "hooked-step": (
        "What the hook keeps is a mean over samples: that of the ranks is averaged before the step, which is the same "
        "on every rank then. The gradients are averaged by the wrapper."
    ),
    "trained-by-methods": (
        "The forward pass returns the loss, and the training loop calls `backward()`: the wrapper averages the "
        "gradients of what runs through it."
    ),
    "weights-without-a-module": (
        "Without a module there is nothing to wrap: each tensor is handed over by itself, and its gradients are "
        "averaged in `backward()`. Weights that are put into an `nn.Module` need no such lines."
    ),
    "run-by-a-function": (
        "The model becomes a module whose forward pass calls the function, and that module is wrapped and called."
    ),
    "growing-model": (
        "Each new model is wrapped where it is made, and it is made of the script's own layers, not of their wrapper."
    ),
    "model-per-epoch": (
        "The wrapper takes the model's place in the object that holds it, so every epoch finds the wrapped one."
    ),
    "trained-copy": (
        "The copy is wrapped as well, and called by its variable. It is copied from the model itself, before that is "
        "wrapped."
    ),
    "data-parallel-extended": (
        "What the derived class adds goes into a module around the model, and that module is wrapped: its forward "
        "pass computes the loss."
    ),
    "copied-to-gpus": (
        "Each process has one GPU, so the model is called itself; the wrapper does what the copies were for."
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


def path_of(name: str, which: str) -> Path:
    """Return the script of an example, `which` is "before" or "after"."""
    return next(FOLDER.glob(f"*/{name.replace('-', '_')}_{which}.py"))


def show_example(name: str) -> str:
    """Return an example as Markdown: for which refusals, the idea, the changed lines, the script before."""
    before, after = (path_of(name, which).read_text("utf-8") for which in ("before", "after"))
    kinds = [f"{kind.code} `{kind.name}`" for kind in KINDS.values() if name in kind.examples]
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), "before.py", "after.py", n=100)
    title = before.partition('"""')[2].partition('"""')[0]
    refused = f"Refused as {' and '.join(kinds)}."
    return f"### {name}\n\n{title} {refused}\n\n{EXAMPLES[name]}\n\n```diff\n{''.join(lines)}```\n"


def page() -> str:
    """Return docs/refusals.md."""
    subjects = {name: path_of(name, "before").parent.name for name in EXAMPLES}
    listed, shown = "", []
    for folder, title in SUBJECTS.items():
        names = [name for name in EXAMPLES if subjects[name] == folder]
        links = [f"- [{name}](#{name}): {_kinds_of(name)}\n" for name in names]
        listed += f"{title}:\n\n{''.join(links)}\n"
        shown += [f"## {title}\n", *map(show_example, names)]
    return "\n".join([HEAD, listed + _without_lines(), *shown])


def _kinds_of(name: str) -> str:
    return ", ".join(f"`{kind.name}`" for kind in KINDS.values() if name in kind.examples)


def _without_lines() -> str:
    """Return which kinds have no example, by the reason."""
    from .help import PATCHES

    patched = ", ".join(f"`{name}`" for name in PATCHES)
    rest = "".join(f"- `{name}`: {reason}\n" for name, reason in WITHOUT_LINES.items())
    return (
        f"For these the refusal itself shows a change of the lines of the script: {patched}.\n\n"
        f"For these nothing is to be written in the script, or nothing that an example could show:\n\n{rest}"
    )
