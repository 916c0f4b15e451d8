"""Stop the training when the ranks' parameters are no longer the same.

Each rank takes a fingerprint of every parameter right after an optimizer step, which needs no communication, and the
ranks compare them at the end of a backward pass, where all of them are anyway: one all-reduce of a few numbers per
tensor. Buffers are not compared: DDP gives every rank rank 0's at the start of each forward, and the statistics of
a BatchNorm that is not synchronised differ in between. Parameters that DDP was told to ignore, and sharded ones, are
each rank's own and are not compared either.

When: in the second and third backward pass, which is after the first and the second optimizer step, then ever more
seldom up to every 500th. That is counted in passes and not in epochs, because no wrapper can see where an epoch of a
script ends: at most 500 steps are lost to a divergence, however long an epoch is. What goes wrong after the last
comparison of a training is not found; RETROFIT_CONSISTENCY=always compares in every pass.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..process_group import get_rank
from .average_gradients import all_reduce_small
from .bit_hash import bit_hash, bit_hash_later
from .unwrap import unwrap_model

CONSISTENCY_TWIN = "RETROFIT_CONSISTENCY"
CHOICES = ("off", "first", "always")
FIRST_PASSES = (2, 3, 10, 20, 50, 100, 200)  # the backward passes at which parameters are compared, then every PERIOD
PERIOD = 500
MOST_POSTPONED = 8  # passes without an optimizer step, after which the parameters are compared as they are
CAUSES = (
    "probable causes: an optimizer step, or a change of p.grad or of a parameter, that depends on this rank's own "
    "samples or loss; weights drawn again, or a checkpoint or optimizer state loaded, on some ranks only or after "
    "wrapping; `retrofit verify` finds the line, "
    f"{CONSISTENCY_TWIN}=off switches this check off"
)

_checks: weakref.WeakSet[ConsistencyCheck] = weakref.WeakSet()
_unsynchronised: dict[str, int] = {}  # of optimizers that step on parameters of no wrapped model: their fingerprint
_left_out: dict[str, int] = {}  # of optimizers that step on a wrapped model and on other parameters: that of the others
_is_hooked = _has_warned = False


def resolve_consistency() -> str:
    """Return the choice of the environment; raises ValueError for another one."""
    choice = os.environ.get(CONSISTENCY_TWIN) or "first"
    if choice not in CHOICES:
        raise ValueError(f"{CONSISTENCY_TWIN}={choice!r} is not valid; use one of: {', '.join(CHOICES)}, or unset it")
    return choice


class ConsistencyCheck:
    """Compares the parameters of one model that every rank has a whole copy of.

    `choice`: off; first, in the backward passes FIRST_PASSES and then every PERIOD; always, in every pass.
    Collective: every rank of `group`, to construct it. Raises ValueError where the ranks' choices differ.
    """

    def __init__(self, model: nn.Module, group: Any, choice: str) -> None:
        place = CHOICES.index(choice)
        lowest, highest = all_reduce_small([-place, place], dist.ReduceOp.MAX, group)
        if -lowest != highest:
            raise ValueError(
                f"{CONSISTENCY_TWIN} is {choice!r} on rank {get_rank()} and another on other ranks; set it to the same "
                "value on all"
            )
        self._model, self._group, self._choice = weakref.ref(model), group, choice
        self._num_tensors = len(_parameters(model))
        self._passes = self._postponed = 0
        self._is_due = False
        self._fresh: torch.Tensor | None = None
        if choice != "off":
            _watch_optimizers()
            _checks.add(self)

    def end_of_pass(self, remark: bool = False) -> bool:
        """Count a backward pass that synchronised gradients, and compare where that is due.

        Return whether any rank made a remark at a comparison. Collective: every rank. Raises RuntimeError on all of
        them when a parameter differs.
        """
        if self._choice == "off":
            return False
        self._passes += 1
        is_remarked = self._is_due and self._compare(remark)
        following = self._passes + 1
        if self._choice == "always" or following in FIRST_PASSES or following % PERIOD == 0:
            self._is_due = True
        return is_remarked

    def optimizer_stepped(self, parameters: set[int]) -> bool:
        """Take the fingerprint that is due, after a step on these parameters (by id); return whether any is ours."""
        model = self._model()
        if model is None or not any(id(parameter) in parameters for _, parameter in _parameters(model)):
            return False
        if self._is_due:
            self._fresh = self._fingerprint(model)
        return True

    def _fingerprint(self, model: nn.Module) -> torch.Tensor:
        found = [bit_hash_later(parameter) for _, parameter in _parameters(model)][: self._num_tensors]
        place = found[0].device if found else torch.device("cpu")
        padding = [torch.zeros((), dtype=torch.int64)] * (self._num_tensors - len(found))
        return torch.stack([value.to(place) for value in (*found, *padding)])

    def _compare(self, remark: bool) -> bool:
        model = self._model()
        assert model is not None  # its own backward pass has just ended
        if self._fresh is None and self._postponed == MOST_POSTPONED:
            self._fresh = self._fingerprint(model)
        alone = [value for _, value in sorted(_unsynchronised.items())]
        own = [int(self._fresh is not None), _joint(alone), len(alone), int(remark)]
        own += [_joint(value for _, value in sorted(_left_out.items()))]
        own += [0] * self._num_tensors if self._fresh is None else self._fresh.tolist()
        highest = all_reduce_small([*own, *(~value for value in own)], dist.ReduceOp.MAX, self._group)
        differing = [high != ~low for high, low in zip(highest[: len(own)], highest[len(own) :])]
        if any(differing[1:3]):
            self._warn()
        if differing[4]:
            self._raise_left_out()
        if not highest[0]:  # gradients are being accumulated, or a GradScaler skips steps: on all ranks
            self._postponed += 1
            return bool(highest[3])
        if differing[0] or any(differing[5:]):
            self._raise(model)
        self._is_due, self._fresh, self._postponed = False, None, 0
        return bool(highest[3])

    def _raise(self, model: nn.Module) -> None:
        """Tell all ranks what differs. A rank that took no step may still have the same parameters, and so may NaNs."""
        parameters = _parameters(model)
        hashes = self._fingerprint(model).tolist() if self._fresh is None else self._fresh.tolist()
        for number, (_, parameter) in enumerate(parameters):
            if parameter.isnan().any():  # of which there are several, which mean the same
                hashes[number] = bit_hash(parameter.detach().nan_to_num(nan=-0.75))
        of_ranks = self._gather((hashes, self._fresh is not None))
        different = [i for i, values in enumerate(zip(*(of_rank[0] for of_rank in of_ranks))) if len(set(values)) > 1]
        if not different:
            return
        name, parameter = parameters[different[0]]
        norms = ", ".join(f"{norm:.9g}" for norm in self._gather(float(parameter.detach().double().norm())))
        idle = ", ".join(str(rank) for rank, (_, has_stepped) in enumerate(of_ranks) if not has_stepped)
        steps = f"; rank {idle} took no optimizer step since the backward pass before" if idle else ""
        raise RuntimeError(
            f"the ranks have different parameters: {name!r} is the first of {len(different)} of {len(parameters)} "
            f"tensors of {type(unwrap_model(model)).__name__} that differ (norms by rank: {norms}), found in backward "
            f"pass {self._passes}{steps}; {CAUSES}"
        )

    def _raise_left_out(self) -> None:
        names = sorted({name for of_rank in self._gather(list(_left_out)) for name in of_rank})
        raise RuntimeError(
            f"the ranks have different parameters, which are in no wrapped model: {'; '.join(names)}; put their model "
            f"through rd.distribute_model, or a parameter through rd.model.distribute_parameter; "
            f"{CONSISTENCY_TWIN}=off switches this check off"
        )

    def _gather(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(found, value, group=self._group)
        return found

    def _warn(self) -> None:
        global _has_warned
        if get_rank() == 0 and not _has_warned:
            names = "; ".join(_unsynchronised) or "an optimizer that rank 0 does not step"
            warnings.warn(
                f"an optimizer steps on parameters that no wrapper synchronises and ranks differ in them: {names}; "
                "put their model through rd.distribute_model, unless each rank is to train its own",
                stacklevel=2,
            )
        _has_warned = True


def _parameters(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return the parameters that every rank holds a whole copy of, by name."""
    ignored: set[str] = model.__dict__.get("_never_synchronised", set())
    return [
        (name, parameter)
        for name, parameter in unwrap_model(model).named_parameters()
        if name not in ignored and not hasattr(parameter, "device_mesh") and parameter.device.type != "meta"
    ]


def _joint(values: Any) -> int:
    total = 0
    for value in values:
        total = (total * 1_000_003 + value) % 2**62
    return total


def _watch_optimizers() -> None:
    global _is_hooked
    if not _is_hooked:
        register_optimizer_step_post_hook(_after_step)
        _is_hooked = True


@torch.no_grad()
def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if not any(check._is_due for check in _checks):
        return
    given = list(_of_optimizer(optimizer))
    is_ours = [check.optimizer_stepped({id(parameter) for parameter in given}) for check in list(_checks)]
    wrapped = {id(p) for check in _checks if (model := check._model()) is not None for p in model.parameters()}
    own = [p for p in given if isinstance(p, nn.Parameter) and id(p) not in wrapped and not _is_synchronised(p)]
    if own:
        others = _left_out if any(is_ours) else _unsynchronised
        name = f"{type(optimizer).__name__} with {len(own)} parameter(s), the first of shape {tuple(own[0].shape)}"
        others[name] = _joint(int(bit_hash_later(parameter)) for parameter in own)


def _is_synchronised(parameter: torch.Tensor) -> bool:
    """Return whether a parameter of no wrapped model is sharded, or has a hook as `distribute_parameter` sets."""
    return hasattr(parameter, "device_mesh") or bool(parameter._backward_hooks)


def _of_optimizer(optimizer: Any) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
