"""Settings of one traced process. Plain types only: they are passed to the process and into reports."""

from __future__ import annotations

from dataclasses import dataclass, field

UNCUT = 10**9  # batches: more than an epoch has
PARTS, KEEPS = "parts", "keeps"  # what a test decides: whether ranks go other ways, or which state is kept


@dataclass(frozen=True)
class DecisionTest:
    """A condition in the script that decides about the training."""

    line: int  # at which it begins, from 1
    column: int  # at which it begins, from 0, in bytes
    text: str  # "acc > best"
    kind: str  # PARTS or KEEPS
    names: list[str]  # of the variables that are compared: "acc", "self.best"
    counts: bool = False  # whole numbers are figures, too: the best of them is kept


@dataclass(frozen=True)
class CutEpoch:
    """After how many of its batches an epoch of training is cut, on one process."""

    batches: int  # 0: not cut, and the script ends with its last step; UNCUT: it is run to its end
    whole: int = 0  # the batches of the epoch; 0 where that is not known

    def of(self, length: int | None) -> int:
        """Return after how many batches a loader of this length is cut."""
        times = round(length / self.whole) if length and self.whole else 1
        return self.batches * max(1, times)


@dataclass(frozen=True)
class TraceSettings:
    """Settings of one rank of one traced run."""

    folder: str  # rank r writes {folder}/rank{r}.jsonl
    project: str  # root of this run's copy of the project
    start: str = ""  # the folder in it from which the script is started
    module: str = ""  # the script is run as `python -m module`
    rank: int = 0
    world_size: int = 1
    steps: int = 0  # batches with an optimizer step to run, half of them per epoch; 0 = all that the script takes
    lengths: dict[str, CutEpoch] = field(default_factory=dict)  # by loader: see data/lengths
    finds_lengths: bool = False  # the run ends where such a length is needed and not known
    spawns: bool = False  # the script starts its own processes (mp.spawn): this one takes the place of one of them
    controlled: bool = False  # float64, random draws per sample, BatchNorm over all ranks
    as_is: bool = False  # if controlled: nevertheless in the script's own precision, and with torch.compile
    own_draws: bool = False  # if controlled: nevertheless with each rank's own numbers of Python's random and of numpy
    rounding: int = 0  # seed of random errors, as large as those of rounding; 0: none
    averaged_in: str = ""  # the narrower type in which ranks average gradients: these are rounded so, too
    replay: list[str] = field(default_factory=list)  # traces whose batches, joined over the ranks, are trained on
    reorder: bool = False  # with the samples of each joined batch in another order
    snapshot: str = ""  # rank 0 copies the project to it when all begin their second training epoch
    epochs_done: int = 0  # training epochs, and
    batches_done: int = 0  # batches with a step before this process: a resumed run continues after them
    stop_before_first_step: bool = False
    watched: dict[str, list[int]] = field(default_factory=dict)  # lines by file: whether they are run is recorded
    decisions: dict[str, list[DecisionTest]] = field(default_factory=dict)  # by file: values in them are recorded
    seed: int = 0  # for a script that seeds nothing itself
