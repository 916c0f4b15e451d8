"""An order of samples that a library does not restore, whatever the script does.

Accelerate gives a shuffled loader that it prepares for several processes a generator of its own, and `save_state` does
not save that one; a loader of Lightning Fabric counts its passes from 0 in each process and shuffles by that number. A
script that continues so is judged with the order of the run without the stop.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from retrofit.verify.checks.checkpoint.continued_steps import OTHER_SAMPLES
from retrofit.verify.evidence import RankTrace, Run
from retrofit.verify.trace.events import CountedPass, FileLoad

IN_ORDER = "resumed_in_order"  # the run that continues with that order
OF_LOAD_STATE = re.compile(r"random_states_\d+\.pkl")  # the file of each rank that Accelerate's load_state reads
SHARDED = {"BatchSamplerShard", "RandomSampler"}  # Accelerate's sampler around torch's; its seedable one is another
OF_FABRIC = (
    "Lightning Fabric counts the epochs of a shuffled loader from 0 again, so that the resumed epoch has another order "
    "than without the stop; all else was compared in the same order"
)
OF_ACCELERATE = (
    "Accelerate does not save the generator of a shuffled loader on several processes, so that the resumed epoch has "
    "another order than without the stop; all else was compared in the same order. "
    "DataLoaderConfiguration(use_seedable_sampler=True) with loader.set_epoch(epoch) in each epoch restores the order"
)


def is_of_library(summary: str, many: Run, resumed: Run) -> bool:
    """Return whether what differs in a resumed run is the order that its library does not restore."""
    if not summary.startswith(OTHER_SAMPLES):
        return False
    return all(map(_continues_with_accelerate, resumed.ranks)) or _continues_with_fabric(many, resumed)


def library_note(resumed: Run) -> str:
    """Return what the library of a run in the order of the run without the stop does not restore."""
    return OF_FABRIC if resumed.main.first(CountedPass) else OF_ACCELERATE


def _continues_with_fabric(many: Run, resumed: Run) -> bool:
    """Return whether the first epoch's order is drawn once more, in no more epochs than were left."""
    pairs = [(rank.epochs[:1], other.epochs[:1]) for rank, other in zip(many.ranks, resumed.ranks)]
    is_again = all(ours and theirs and ours[0].order == theirs[0].order for ours, theirs in pairs)
    is_shorter = resumed.num_epochs < many.num_epochs
    return is_shorter and is_again and all(rank.first(CountedPass) is not None for rank in resumed.ranks)


def _continues_with_accelerate(rank: RankTrace) -> bool:
    names = [PurePath(event.path or "").name for event in rank.of(FileLoad) if not event.by_script]
    begins = [epoch.begin for epoch in rank.epochs[:1]]
    is_shuffled = any({*one.samplers} >= SHARDED and one.streams.get("loader") is None for one in begins)
    return is_shuffled and any(OF_LOAD_STATE.fullmatch(name) for name in names)
