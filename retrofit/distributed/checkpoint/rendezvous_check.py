"""Wait for every rank, and tell which one did not come."""

from __future__ import annotations

import re
from datetime import timedelta

import torch.distributed as dist

from ..failure.collective_calls import collective
from ..process.options import get_option
from ..process.process_group import control_group, get_rank, get_world_size


@collective
def require_every_rank(what: str) -> None:
    """Wait until every rank is here, where one that never comes is a usual mistake: `if is_main_process(): save(...)`.

    Collective: every rank. Raises RuntimeError that names the ranks which did not come within `--dist_timeout`.
    """
    if get_world_size() == 1:
        return
    timeout_s = get_option("dist_timeout")
    try:
        dist.monitored_barrier(control_group(), timedelta(seconds=timeout_s), wait_all_ranks=True)
    except RuntimeError as error:
        missing = re.search(r"[Rr]anks? ([\d, ]+?) failed to pass|did not.*?ranks? ([\d, ]+)", str(error))
        ranks = (missing[1] or missing[2]).strip(" ,") if missing else "another one"
        raise RuntimeError(
            f"{what} was called by rank {get_rank()}, but not by rank {ranks} within {timeout_s:g} s; every rank must "
            "call it, also those that write nothing: take it out of `if is_main_process():`"
        ) from error
