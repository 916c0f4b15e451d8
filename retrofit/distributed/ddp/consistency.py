"""Stop the training when the ranks' parameters are no longer the same.

Each rank takes a hash of every parameter right after an optimizer step, which needs no communication, and the ranks
compare them at the end of a backward pass, where all of them are anyway: in the second and third pass, which is after
the first and the second optimizer step, then ever more seldom up to every 500th. Passes are counted and not epochs,
because no wrapper can see where an epoch of a script ends. What goes wrong after the last comparison is not found.
What the ranks show is compared with them (`shown_figures`).
"""

from __future__ import annotations

import warnings
import weakref
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..failure.shown_figures import say_where_ranks_differ, take_shown
from ..process.options import CONSISTENCY, read_twin
from ..process.process_group import get_rank
from .bit_hash import bit_hash, bit_hash_later
from .unwrap import all_named_parameters, all_parameters

COMPARED_PASSES = (2, 3, 10, 20, 50, 100, 200)  # in which parameters are compared by default, then every PERIOD
PERIOD = 500
MOST_POSTPONED = 8  # passes without an optimizer step, after which the parameters are compared as they are
SWITCHED_OFF = "RETROFIT_CONSISTENCY=off switches this check off"

_checks: weakref.WeakSet[ConsistencyCheck] = weakref.WeakSet()
_alone: dict[str, int] = {}  # hashes of what optimizers change that is in no wrapped model, by a description
_left_out: dict[str, int] = {}  # the same of optimizers that change a wrapped model as well


class ConsistencyCheck:
    """Compares the parameters of a module that every rank has a whole copy of, all but those with an id in `own`.

    RETROFIT_CONSISTENCY says when: off; first, in COMPARED_PASSES and then every PERIOD; always, in every pass.
    Collective: every rank of `group`, to construct it. Raises ValueError where the ranks' choices differ.
    """

    def __init__(self, module: nn.Module, own: set[int], group: Any) -> None:
        self.module, self._own, self._group, self._choice = module, own, group, read_twin(CONSISTENCY)
        self._num_passes = self._num_postponed = 0
        self.is_due = False
        self._fresh: torch.Tensor | None = None  # the hashes after the last optimizer step
        if len(set(self._gather(self._choice))) > 1:
            raise ValueError(
                f"RETROFIT_CONSISTENCY is {self._choice!r} on rank {get_rank()} and another on other ranks; set it to "
                "the same value on all"
            )
        if self._choice == "off" or not self._parameters():
            self._choice = "off"
            return
        _checks.add(self)
        _follow_optimizers()

    def end_of_pass(self, has_missed: bool) -> bool:
        """Count a backward pass, compare where that is due, and return whether any rank `has_missed` gradients then.

        Collective: every rank. Raises RuntimeError on all of them when a parameter differs.
        """
        if self._choice == "off":
            return False
        self._num_passes += 1
        any_missed = self.is_due and self._compare(has_missed)
        following = self._num_passes + 1
        self.is_due |= self._choice == "always" or following in COMPARED_PASSES or following % PERIOD == 0
        return any_missed

    def optimizer_stepped(self, ids: set[int]) -> bool:
        """Take the hashes that are due, after a step on parameters with these ids; return whether any is compared."""
        if ids.isdisjoint(id(parameter) for parameter in self._parameters().values()):
            return False
        if self.is_due:
            self._fresh = self._hashes()
        return True

    def _parameters(self) -> dict[str, nn.Parameter]:
        named = all_named_parameters(self.module)
        return {name: p for name, p in named if id(p) not in self._own and not hasattr(p, "device_mesh")}

    def _hashes(self) -> torch.Tensor:
        hashes = [bit_hash_later(parameter) for parameter in self._parameters().values()]
        return torch.stack([value.to(hashes[0].device) for value in hashes])

    def _compare(self, has_missed: bool) -> bool:
        if self._fresh is None and self._num_postponed == MOST_POSTPONED:
            self._fresh = self._hashes()
        own = None if self._fresh is None else self._fresh.tolist()
        of_ranks = self._gather((own, has_missed, _alone, _left_out, take_shown()))
        hashes, missed, alone, left_out, shown = zip(*of_ranks)
        say_where_ranks_differ(list(shown))
        if get_rank() == 0 and any(of_rank != _alone for of_rank in alone):
            _warn_of_alone("; ".join(_alone) or "an optimizer that rank 0 does not step")
        if any(of_rank != left_out[0] for of_rank in left_out):
            names = sorted(set().union(*left_out))
            raise RuntimeError(
                f"the ranks have different parameters, which are in no wrapped model: {'; '.join(names)}; put their "
                f"model through rd.distribute_model, or a parameter through rd.model.distribute_parameter; "
                f"{SWITCHED_OFF}"
            )
        if not any(hashes):  # gradients are being accumulated, or a GradScaler skips steps: on all ranks
            self._num_postponed += 1
            return any(missed)
        if any(of_rank != hashes[0] for of_rank in hashes):
            self._refuse_differing()
        self.is_due, self._fresh, self._num_postponed = False, None, 0
        return any(missed)

    def _refuse_differing(self) -> None:
        """Tell all ranks what differs. A rank that took no step may still have the same parameters, and so may NaNs."""
        parameters = self._parameters()
        hashes = (self._hashes() if self._fresh is None else self._fresh).tolist()
        for number, parameter in enumerate(parameters.values()):
            if parameter.isnan().any():  # of which there are several, which mean the same
                hashes[number] = bit_hash(parameter.detach().nan_to_num(nan=-0.75))
        of_ranks = self._gather((hashes, self._fresh is not None))
        equal = [len(set(values)) == 1 for values in zip(*(of_rank for of_rank, _ in of_ranks))]
        if all(equal):
            return
        name = list(parameters)[equal.index(False)]
        norms = ", ".join(f"{norm:.9g}" for norm in self._gather(float(parameters[name].detach().double().norm())))
        idle = ", ".join(str(rank) for rank, (_, has_stepped) in enumerate(of_ranks) if not has_stepped)
        steps = f"; rank {idle} took no optimizer step since the backward pass before" if idle else ""
        raise RuntimeError(
            f"the ranks have different parameters: {name!r} is the first of {equal.count(False)} of {len(parameters)} "
            f"tensors of {type(self.module).__name__} that differ (norms by rank: {norms}), found in backward pass "
            f"{self._num_passes}{steps}; probable causes: an optimizer step, or a change of p.grad or of a parameter, "
            "that depends on this rank's own samples or loss; weights drawn again, or a checkpoint or optimizer state "
            f"loaded, on some ranks only or after wrapping; `retrofit verify` finds the line, {SWITCHED_OFF}"
        )

    def _gather(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(found, value, group=self._group)
        return found


@cache
def _warn_of_alone(names: str) -> None:
    warnings.warn(
        f"an optimizer steps on parameters that no wrapper synchronises and ranks differ in them: {names}; "
        "put their model through rd.distribute_model, unless each rank is to train its own",
        stacklevel=2,
    )


@cache
def _follow_optimizers() -> None:
    register_optimizer_step_post_hook(_after_step)


@torch.no_grad()
def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Take hashes of what an optimizer has changed: of wrapped models, and of what is in none."""
    if not any(check.is_due for check in _checks):
        return
    given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    is_wrapped = [check.optimizer_stepped({id(parameter) for parameter in given}) for check in list(_checks)]
    # Sharded, or with a hook as `distribute_parameter` sets: synchronised as well.
    known = {id(parameter) for check in _checks for parameter in all_parameters(check.module)}
    known |= {id(parameter) for parameter in given if hasattr(parameter, "device_mesh") or parameter._backward_hooks}
    rest = [parameter for parameter in given if isinstance(parameter, nn.Parameter) and id(parameter) not in known]
    if rest:
        name = f"{type(optimizer).__name__} with {len(rest)} parameter(s), the first of shape {tuple(rest[0].shape)}"
        (_left_out if any(is_wrapped) else _alone)[name] = hash(tuple(map(bit_hash, rest)))
