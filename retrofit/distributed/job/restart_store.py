"""A part of torchrun's store that no earlier start of this job has written to.

In recent versions of torch the workers of every attempt meet in one store, the launcher's. What a dead attempt left
there is found by the next one: now and again gloo connects to an address where no process listens any more
("connectFullMesh failed: Connection refused"), and the restart fails. TORCHELASTIC_RESTART_COUNT cannot tell the
attempts apart: with several nodes it is each launcher's own count.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist

PREFIX = "retrofit/start"
POLL_S = 0.02
ABSENT = "absent"  # no value of ours


def may_restart(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether torchrun may start this job's workers again, in the same store. The same on every rank."""
    environ = os.environ if environ is None else environ
    restarts = environ.get("TORCHELASTIC_MAX_RESTARTS") or "0"
    return environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and restarts.isdigit() and int(restarts) > 0


def own_store(init_method: str, rank: int, world_size: int, timeout: timedelta) -> dist.PrefixStore | None:
    """Return the store of this attempt of a job that torchrun may start again, None for any other job.

    Collective: every rank. Raises RuntimeError when a rank does not come within `timeout`.
    """
    if init_method != "env://" or not may_restart():
        return None
    store = next(dist.rendezvous(init_method, timeout=timeout))[0]
    return fresh_store(store, rank, world_size, timeout.total_seconds())


def fresh_store(store: Any, rank: int, world_size: int, timeout_s: float) -> dist.PrefixStore:
    """Return a part of `store` of this attempt's own, the same on every rank. Collective: every rank.

    Rank 0 makes up a name for it and answers what each rank asks under a name that is new, too: an answer to a dead
    rank's question is never read. Raises RuntimeError when a rank does not come within `timeout_s`.
    """
    name = uuid.uuid4().hex
    if rank > 0:
        store.set(f"{PREFIX}/question/{rank}", name)
        name = store.get(f"{PREFIX}/answer/{name}").decode()
        store.set(f"{PREFIX}/{name}/joined/{rank}", "")
    else:
        waiting, answered = set(range(1, world_size)), dict[int, str]()
        deadline = time.monotonic() + timeout_s
        while waiting:
            for other in sorted(waiting):
                question = peek(store, f"{PREFIX}/question/{other}")
                if question not in (ABSENT, answered.get(other)):
                    store.set(f"{PREFIX}/answer/{question}", name)
                    answered[other] = question
                if peek(store, f"{PREFIX}/{name}/joined/{other}") != ABSENT:
                    waiting.discard(other)
            if time.monotonic() > deadline:
                raise RuntimeError(f"no sign of rank(s) {', '.join(map(str, sorted(waiting)))}")
            time.sleep(POLL_S if waiting else 0)
    return dist.PrefixStore(f"{PREFIX}/{name}", store)


def peek(store: Any, key: str) -> str:
    """Return the value of `key` without waiting for it, `ABSENT` if there is none; torch 2.1 has no `Store.check`."""
    # What is absent stays so, because it is only made where nothing was expected; what is there is not this value.
    value = store.compare_set(key, ABSENT, ABSENT)
    return value.decode() if isinstance(value, bytes) else str(value)
