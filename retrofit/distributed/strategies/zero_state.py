"""The states of a model and an optimizer under DeepSpeed ZeRO: gathered for a file, and sharded again.

Both have torch's own format, so that a file fits every strategy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..ddp.unwrap import unwrap_model
from ..process.process_group import get_rank


def whole_model(model: Any, keep: bool) -> dict[str, Any]:
    """Return a ZeroModel's whole weights, in float32 where DeepSpeed keeps them so, on the CPU under stage 3.

    A rank without `keep` takes part and gets none. Collective: every rank.
    """
    module = unwrap_model(model)
    whole: dict[int, torch.Tensor] = {}
    state = module.state_dict()
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if name in state and id(parameter) not in whole:
            whole[id(parameter)] = _whole_parameter(model, parameter, keep)
    named = dict(module.named_parameters(remove_duplicate=False))
    return {name: whole[id(named[name])] if name in named else value for name, value in state.items()} if keep else {}


def whole_shapes(model: Any) -> dict[str, Any]:
    """Return the model's state with parameters that have whole shapes, but no values. No communication."""
    module = unwrap_model(model)
    state = module.state_dict()
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if name in state and hasattr(parameter, "ds_shape"):
            state[name] = torch.empty(parameter.ds_shape, dtype=parameter.dtype, device="meta")
    return state


def load_whole_model(model: Any, state: Mapping[str, Any]) -> Any:
    """Put whole weights into a ZeroModel. Collective: every rank, with the same weights."""
    module = unwrap_model(model)
    result = module.load_state_dict(state) if model.stage < 3 else _load_stage_3(module, state)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if model.stage and parameter.requires_grad and name in state:
            _set(parameter, state[name].to(parameter.device, torch.float32))
    return result


def whole_optimizer_state(optimizer: Any, keep: bool) -> dict[str, Any]:
    """Return a ZeroOptimizer's whole state as torch's optimizer would, on the CPU; without `keep`, the groups alone.

    Collective: every rank.
    """
    engine = optimizer.engine
    if not engine.zero_optimization():
        return optimizer.inner.state_dict()
    flat = _flat_states(engine)
    names = flat_state_names(flat)
    common = {key: value for key, value in (flat[0][1] if flat else {}).items() if key not in names}
    if flat:
        _link(engine)
    state: dict[int, dict[str, Any]] = {}
    for index, parameter in enumerate(parameter for group in optimizer.layout for parameter in group):
        if (not names and not common) or not parameter.requires_grad:
            continue
        entry = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in common.items()}
        for key in names:
            whole = _tensor_fragment().safe_get_full_optimizer_state(parameter, key)
            if keep:
                entry[key] = whole.detach().cpu().clone()
        if keep:
            state[index] = entry
    return {"state": state, "param_groups": _numbered_groups(optimizer)}


def load_optimizer_state(optimizer: Any, saved: Mapping[str, Any]) -> None:
    """Put a whole state, in torch's format, into a ZeroOptimizer. Collective: every rank, with the same state.

    Raises ValueError for a state of other groups or of another optimizer; nothing has been changed then.
    """
    engine = optimizer.engine
    if not engine.zero_optimization():
        optimizer.inner.load_state_dict(dict(saved))
        return
    parameters = [parameter for group in optimizer.layout for parameter in group]
    _check(optimizer, saved, parameters)
    entries = {index: entry for index, entry in saved["state"].items() if parameters[index].requires_grad}
    for group, options in zip(optimizer.param_groups, saved["param_groups"]):
        group.update({key: value for key, value in options.items() if key != "params"})
    if not entries:
        for _, state in _flat_states(engine):
            state.clear()
        return
    first = next(iter(entries.items()))
    names = [key for key, value in first[1].items() if _is_like(value, parameters[first[0]])]
    _make_flat_states(engine, names, {key: value for key, value in first[1].items() if key not in names})
    for index, parameter in enumerate(parameters):
        if parameter.requires_grad:
            for key in names:
                value = entries.get(index, {}).get(key)
                whole = torch.zeros(_shape(parameter)) if value is None else value
                _set(parameter, whole.to(engine.device, torch.float32), key)


def flat_state_names(flat: list[tuple[torch.Tensor, dict[str, Any]]]) -> list[str]:
    """Return the names of the entries of an optimizer's state that have a value per element."""
    return [key for key, value in flat[0][1].items() if _is_like(value, flat[0][0])] if flat else []


def _whole_parameter(model: Any, parameter: nn.Parameter, keep: bool) -> torch.Tensor:
    if model.stage and parameter.requires_grad and (model.stage == 3 or parameter.dtype != torch.float32):
        whole = _tensor_fragment().safe_get_full_fp32_param(parameter)
        return whole.detach().cpu().clone() if keep else whole
    if hasattr(parameter, "ds_shape"):  # frozen under stage 3
        import deepspeed

        with deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().cpu().clone()
    return parameter.detach()


def _load_stage_3(module: nn.Module, state: Mapping[str, Any]) -> Any:
    import deepspeed

    rest = dict(state)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if name in state:
            with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
                parameter.data.copy_(state[name])
            del rest[name]
    return module.load_state_dict(rest, strict=False)


def _check(optimizer: Any, saved: Mapping[str, Any], parameters: list[nn.Parameter]) -> None:
    here, there = ([len(group["params"]) for group in groups] for groups in _both_groups(optimizer, saved))
    if here != there:
        raise ValueError(f"the saved optimizer has groups of {there} parameters, this one of {here}")
    for index, entry in saved["state"].items():
        for key, value in entry.items():
            if isinstance(value, torch.Tensor) and value.dim() and value.shape != _shape(parameters[index]):
                raise ValueError(
                    f"{key} of parameter {index} is {tuple(value.shape)} there, {tuple(_shape(parameters[index]))} here"
                )
    before, now = (set(groups[0]) - {"params"} if groups else set() for groups in _both_groups(optimizer, saved))
    missing = before - now
    if missing:
        raise ValueError(f"the saved optimizer is another one: it has no {', '.join(sorted(missing))}")


def _both_groups(optimizer: Any, saved: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    return _numbered_groups(optimizer), list(saved["param_groups"])


def _numbered_groups(optimizer: Any) -> list[dict[str, Any]]:
    groups, start = [], 0
    for group, parameters in zip(optimizer.param_groups, optimizer.layout):
        options = {key: value for key, value in group.items() if key != "params"}
        groups.append({**options, "params": list(range(start, start + len(parameters)))})
        start += len(parameters)
    return groups


def _flat_parameters(engine: Any) -> list[torch.Tensor]:
    """Return the flat float32 pieces that this rank's optimizer changes. DeepSpeed has no public name for them."""
    for name in ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat", "fp32_groups_flat_partition"):
        if hasattr(engine.optimizer, name):
            return list(getattr(engine.optimizer, name))
    import deepspeed

    raise RuntimeError(
        f"deepspeed {deepspeed.__version__} keeps its optimizer state where this version of the runtime does not find "
        "it; use a release that pyproject.toml allows"
    )


def _flat_states(engine: Any) -> list[tuple[torch.Tensor, dict[str, Any]]]:
    states = engine.basic_optimizer.state
    return [(flat, states[flat]) for flat in _flat_parameters(engine) if states.get(flat)]


def _make_flat_states(engine: Any, names: list[str], common: Mapping[str, Any]) -> None:
    """Have states of zeros to write into: torch's optimizers make theirs in the first step."""
    for flat in _flat_parameters(engine):
        state = engine.basic_optimizer.state[flat]
        for key in names:
            if key not in state:
                state[key] = torch.zeros_like(flat)
        for key, value in common.items():
            state[key] = value.clone() if isinstance(value, torch.Tensor) else value
    _link(engine)


def _set(parameter: nn.Parameter, whole: torch.Tensor, key: str = "") -> None:
    """Put this rank's piece of a whole float32 weight, or of the optimizer's `key` of it, where DeepSpeed keeps it."""
    if hasattr(parameter, "ds_id"):
        # By hand: safe_set_full_* of deepspeed 0.19 fails where the ranks' pieces are not of one size.
        size = parameter.partition_numel()  # type: ignore[attr-defined]
        own = whole.flatten()[get_rank() * size : (get_rank() + 1) * size]
        piece, names = torch.nn.functional.pad(own, (0, size - own.numel())), "safe_set_local"
    else:
        piece, names = whole, "safe_set_full"
    if key:
        getattr(_tensor_fragment(), f"{names}_optimizer_state")(parameter, piece, key)
    else:
        getattr(_tensor_fragment(), f"{names}_fp32_param")(parameter, piece)


def _link(engine: Any) -> None:
    """Let the parameters see the whole of the optimizer's state under stages 1 and 2.

    DeepSpeed links them once, after the first group's first step, when the other groups have no state yet.
    """
    if hasattr(engine.optimizer, "_lazy_init_hp_params_optimizer_state"):
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()


def _is_like(value: Any, parameter: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape == _shape(parameter)


def _shape(parameter: torch.Tensor) -> torch.Size:
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))


def _tensor_fragment() -> Any:
    import deepspeed.utils

    return deepspeed.utils
