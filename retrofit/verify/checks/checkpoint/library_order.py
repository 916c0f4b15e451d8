"""An order of samples that a library does not restore, whatever the script does.

Accelerate gives a shuffled loader that it prepares for several processes a generator of its own, and `save_state` does
not save that one. A script that continues with `load_state` is then judged with the order of the run without the stop.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from retrofit.verify.checks.checkpoint.continued_steps import OTHER_SAMPLES
from retrofit.verify.evidence import RankTrace, Run
from retrofit.verify.trace.events import FileLoad

IN_ORDER = "resumed_in_order"  # the run that continues with that order
OF_LOAD_STATE = re.compile(r"random_states_\d+\.pkl")  # the file of each rank that Accelerate's load_state reads
SHARDED = {"BatchSamplerShard", "RandomSampler"}  # Accelerate's sampler around torch's; its seedable one is another
NOTE = (
    "Accelerate does not save the generator of a shuffled loader on several processes, so that the resumed epoch has "
    "another order than without the stop; all else was compared in the same order. "
    "DataLoaderConfiguration(use_seedable_sampler=True) with loader.set_epoch(epoch) in each epoch restores the order"
)


def is_of_library(summary: str, resumed: Run) -> bool:
    """Return whether what differs in a resumed run is the order that its library does not restore."""
    return summary.startswith(OTHER_SAMPLES) and all(_continues_with_accelerate(rank) for rank in resumed.ranks)


def _continues_with_accelerate(rank: RankTrace) -> bool:
    names = [PurePath(event.path or "").name for event in rank.of(FileLoad) if not event.by_script]
    begins = [epoch.begin for epoch in rank.epochs[:1]]
    is_shuffled = any({*one.samplers} >= SHARDED and one.streams.get("loader") is None for one in begins)
    return is_shuffled and any(OF_LOAD_STATE.fullmatch(name) for name in names)
