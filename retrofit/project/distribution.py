"""What a project does already to train on several processes: groups joined, models wrapped, samplers, collectives."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from .analysis import Analysis
from .reach import reached_nodes
from .scopes import Scope

RUNTIME = "retrofit.distributed"
JOINING = {f"{RUNTIME}.setup_distributed", "torch.distributed.init_process_group"}
DDP = {
    "torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed.DistributedDataParallel",
    "apex.parallel.DistributedDataParallel",
}  # fmt: skip
WRAPPERS = DDP | {f"{RUNTIME}.{name}" for name in ("distribute_model", "wrap_model", "DDPWrapper")}
SAMPLERS = {"torch.utils.data.distributed.DistributedSampler", "torch.utils.data.DistributedSampler"}
OF_TORCH = (
    "all_reduce", "reduce", "broadcast", "broadcast_object_list", "all_gather", "all_gather_object", "gather",
    "gather_object", "scatter", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "all_to_all",
    "barrier", "monitored_barrier",
)  # fmt: skip
OF_THE_RUNTIME = (
    "reduce_sum", "reduce_sum_later", "reduce_tensor_sum", "reduce_mean", "reduce_dict", "gather_objects",
    "broadcast_object", "broadcast_buffers", "barrier", "main_process_first", "save_checkpoint",
)  # fmt: skip
COLLECTIVES = {f"torch.distributed.{name}" for name in OF_TORCH} | {f"{RUNTIME}.{name}" for name in OF_THE_RUNTIME}


@dataclass(frozen=True)
class Site:
    """A call in the code that runs, the scope it stands in, and the full names of what it calls."""

    call: ast.Call
    scope: Scope
    names: frozenset[str]


@dataclass(frozen=True)
class Distribution:
    """The calls with which a project distributes itself."""

    joins: list[Site] = field(default_factory=list)  # of a process group
    wraps: list[Site] = field(default_factory=list)  # of a model in DDP
    samplers: list[Site] = field(default_factory=list)  # DistributedSampler(...)
    collectives: list[Site] = field(default_factory=list)

    @property
    def is_by_hand(self) -> bool:
        """Whether the project distributes itself with torch's own calls instead of the runtime's."""
        own = (site for site in (*self.joins, *self.wraps, *self.samplers))
        return any(not name.startswith(f"{RUNTIME}.") for site in own for name in site.names)


def find_distribution(analysis: Analysis) -> Distribution:
    """Return what the code that runs does already for several processes."""
    found = Distribution()
    kinds = ((JOINING, found.joins), (WRAPPERS, found.wraps), (SAMPLERS, found.samplers))
    for site in _calls(analysis):
        for wanted, sites in (*kinds, (COLLECTIVES, found.collectives)):
            if site.names & wanted:
                sites.append(site)
    return found


def _calls(analysis: Analysis) -> Iterator[Site]:
    for node, scope in reached_nodes(analysis):
        if isinstance(node, ast.Call):
            yield Site(node, scope, frozenset(analysis.called(node, scope)))
