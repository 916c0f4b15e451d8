"""Full names in the runtime: a function has one name, whichever module it is reached through.

`rd.loss.sum_loss` and `from retrofit.distributed.loss import sum_loss` are `retrofit.distributed.sum_loss` in every
table of the analysis.
"""

from __future__ import annotations

RUNTIME = "retrofit.distributed"
# The modules of the runtime through which a script reaches a function. A test compares them with the runtime.
MODULES = frozenset(
    {
        "checkpoint", "collectives", "data", "devices", "environment", "evaluation", "job", "learning_rate", "loss",
        "model", "options", "output", "process_group", "random_state", "strategies",
    }
)  # fmt: skip
_PREFIX = f"{RUNTIME}."


def canonical(name: str) -> str:
    """Return the one full name of what `name` is, the name itself outside the runtime."""
    if not name.startswith(_PREFIX):
        return name
    module, _, inner = name[len(_PREFIX) :].partition(".")
    return f"{RUNTIME}.{inner}" if inner and module in MODULES else name
