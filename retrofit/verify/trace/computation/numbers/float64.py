"""Float64 in place of float32, so that rounding does not explain a difference between two runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from retrofit.verify.trace import FOLDER

Run = Callable[[tuple, dict], Any]

_TORCH = os.path.dirname(torch.__file__) + os.sep
# Autograd gives a float32 leaf a float32 gradient, DDP a float32 bucket, and they insist.
_LITERAL = (_TORCH + "autograd" + os.sep, _TORCH + os.path.join("nn", "parallel") + os.sep)
# Files of the frames between an operator's caller and this module.
_BETWEEN = (FOLDER, _TORCH + "_dynamo" + os.sep, _TORCH + "_compile.py")
_FUSED_FLOAT32 = {"state_steps", "grad_scale", "found_inf"}  # the fused optimizers read these as float32, unchecked


def use_float64() -> Callable[[], None]:
    """Make float64 the default type and the type of what modules are called with; return what takes it back.

    The default stays float64 when the script asks for float32 as the default. Modules check the type of their inputs
    before any operator runs.
    """
    set_dtype, set_type, before = torch.set_default_dtype, torch.set_default_tensor_type, torch.get_default_dtype()

    @wraps(set_dtype)
    def set_default_dtype(d: torch.dtype, /) -> None:
        set_dtype(torch.float64 if d is torch.float32 else d)

    @wraps(set_type)
    def set_default_tensor_type(t: Any, /) -> None:
        name = t if isinstance(t, str) else f"{t.__module__}.{t.__name__}"
        set_type(name.replace("FloatTensor", "DoubleTensor"))

    def undo() -> None:
        torch.set_default_dtype, torch.set_default_tensor_type = set_dtype, set_type
        set_dtype(before)
        hook.remove()

    hook = register_module_forward_pre_hook(_widen_inputs)
    torch.set_default_dtype, torch.set_default_tensor_type = set_default_dtype, set_default_tensor_type
    set_dtype(torch.float64)
    return undo


def _widen_inputs(module: torch.nn.Module, inputs: Any) -> Any:
    """Return what the module is called with: under autocast, too, which would narrow its weights as its inputs are."""
    if any(isinstance(value, torch.Tensor) and value.dtype in _HALF for value in inputs) and _is_autocast():
        inputs = tuple(value.double() if getattr(value, "dtype", None) in _HALF else value for value in inputs)
        return _cast(inputs, torch.float64)
    return _cast(inputs, torch.float64) if _types(inputs) & _NARROW else None


def in_float64(func: Any, run: Run) -> Run:
    """Return how to run this operator with float64 in place of float32; `run` itself where there is nothing to do.

    A `dtype=torch.float32` means float64. Of an operator with tensors of both types, the float32 ones become float64;
    of an operator that writes into one of its arguments, the others take that one's type. float16 and bfloat16 that a
    script asks for stay; autocast leaves float64 alone, and what is float32 becomes float64 under it.
    """
    schema = func._schema
    special = _SPECIAL.get(schema.name)
    if special is not None:
        return special(func, run)
    if any(argument.name == "running_mean" for argument in schema.arguments) and "backward" not in schema.name:
        return _batch_norm(func, run)
    kinds = [str(argument.type) for argument in schema.arguments]
    can_mix = sum("Tensor" in kind for kind in kinds) > 1 or any("List[" in kind and "Tensor" in kind for kind in kinds)
    if can_mix and schema.name != "aten::copy_":
        run = _promoted(func, run)
    return _widened(run) if any(argument.name == "dtype" for argument in schema.arguments) else run


def _widened(run: Run) -> Run:
    def widened(args: tuple, kwargs: dict) -> Any:
        if kwargs.get("dtype") is torch.float32 and not _is_without_elements(args) and not _is_literal():
            kwargs = {**kwargs, "dtype": torch.float64}
        return run(args, kwargs)

    return widened


def _is_without_elements(args: tuple) -> bool:
    """Return whether this makes an empty tensor: loading a file puts a storage of float32 numbers under it."""
    return bool(args) and isinstance(args[0], (list, tuple)) and 0 in args[0]


def _is_literal() -> bool:
    """Return whether torch itself asks for float32, for a tensor that is float32."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame = frame.f_back
    return frame is None or frame.f_code.co_filename.startswith(_LITERAL)  # none: the engine's own thread


def _promoted(func: Any, run: Run) -> Run:
    written = [number for number, argument in enumerate(func._schema.arguments) if _is_written(argument)]

    def promoted(args: tuple, kwargs: dict) -> Any:
        if _types((*args, *kwargs.values()) if kwargs else args) != _BOTH:
            return run(args, kwargs)
        if not func._schema.is_mutable:
            return run(
                _cast(args, torch.float64), {name: _cast(value, torch.float64) for name, value in kwargs.items()}
            )
        target = args[written[0]] if written and written[0] < len(args) else kwargs.get("out")
        if not isinstance(target, torch.Tensor):
            return run(args, kwargs)  # lists of tensors, which may differ among themselves: torch promotes them
        dtype = target.dtype if target.dtype is torch.float32 else torch.float64
        others = tuple(value if number in written else _cast(value, dtype) for number, value in enumerate(args))
        return run(others, kwargs)

    return promoted


_WIDE, _NARROW = 1, 2
_HALF = (torch.bfloat16, torch.float16)
_BOTH = _WIDE | _NARROW


def _types(values: Any) -> int:
    """Return which of float64 and float32 occur among the tensors, as a sum of _WIDE and _NARROW."""
    found = 0
    for value in values:
        if isinstance(value, torch.Tensor):
            dtype = value.dtype
            if dtype is torch.float64:
                found |= _WIDE
            elif dtype is torch.float32:
                found |= _NARROW
        elif value.__class__ is list or value.__class__ is tuple:
            found |= _types(value)
    return found


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Return the value with its float32 and float64 tensors, however deep in lists, in `dtype`."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype in (torch.float32, torch.float64) else value
    if value.__class__ is list or value.__class__ is tuple:
        return type(value)(_cast(item, dtype) for item in value)
    return value


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _to_copy(func: Any, run: Run) -> Run:
    def to_copy(args: tuple, kwargs: dict) -> Any:
        dtype = kwargs.get("dtype")
        if dtype is torch.float32:
            if not _is_literal():
                kwargs = {**kwargs, "dtype": torch.float64}
        elif args[0].dtype is torch.float32 and dtype in (torch.bfloat16, torch.float16) and _is_autocast():
            kwargs = {**kwargs, "dtype": torch.float64}
        return run(args, kwargs)

    return to_copy


def _is_autocast() -> bool:
    """Return whether an autocast block is open. Below the dispatcher torch.is_autocast_enabled() is always False."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting() > 0


def _lift_fresh(func: Any, run: Run) -> Run:
    """torch.tensor(...) hands its new tensor out through this operator; torch.from_numpy, which shares memory, too."""

    def lift_fresh(args: tuple, kwargs: dict) -> Any:
        tensor = run(args, kwargs)
        if tensor.dtype is torch.float32 and tensor.numel() and _owns_memory(tensor):
            return tensor.double()
        return tensor

    return lift_fresh


def _owns_memory(tensor: torch.Tensor) -> bool:
    storage: Any = tensor.untyped_storage()
    if hasattr(storage, "resizable"):
        return storage.resizable()
    try:
        storage.resize_(storage.nbytes())  # torch 2.1 has no other way to ask
    except RuntimeError:
        return False
    return True


def _batch_norm(func: Any, run: Run) -> Run:
    """These write into their running statistics, whatever their schema says."""
    names = [argument.name for argument in func._schema.arguments]
    running = [names.index("running_mean"), names.index("running_var")]

    def batch_norm(args: tuple, kwargs: dict) -> Any:
        if _types(args) != _BOTH:
            return run(args, kwargs)
        wide = _cast(args, torch.float64)
        result = run(wide, kwargs)
        for number in running:
            if args[number] is not None and args[number] is not wide[number]:
                args[number].copy_(wide[number])
        return result

    return batch_norm


def _unscale(func: Any, run: Run) -> Run:
    """GradScaler's kernel takes a float32 scale only."""

    def unscale(args: tuple, kwargs: dict) -> None:
        gradients, found_inf, inverse_scale = args
        for gradient in gradients:
            found_inf.masked_fill_(~torch.isfinite(gradient).all().to(found_inf.device), 1.0)
            gradient.mul_(inverse_scale.to(gradient.device))

    return unscale


def _update_scale(func: Any, run: Run) -> Run:
    def update_scale(args: tuple, kwargs: dict) -> Any:
        scale, growth_tracker, found_inf, *rest = args
        narrow = scale.float()
        run((narrow, growth_tracker, found_inf.float(), *rest), kwargs)
        return scale.copy_(narrow)

    return update_scale


def _fused_step(func: Any, run: Run) -> Run:
    names = [argument.name for argument in func._schema.arguments]

    def fused_step(args: tuple, kwargs: dict) -> Any:
        given = zip(names, args)
        own = tuple(_cast(value, torch.float32) if name in _FUSED_FLOAT32 else value for name, value in given)
        named = {
            name: _cast(value, torch.float32) if name in _FUSED_FLOAT32 else value for name, value in kwargs.items()
        }
        return run(own, named)

    return fused_step


_SPECIAL: dict[str, Callable[[Any, Run], Run]] = {
    "aten::_to_copy": _to_copy,
    "aten::lift_fresh": _lift_fresh,
    "aten::_amp_foreach_non_finite_check_and_unscale_": _unscale,
    "aten::_amp_update_scale_": _update_scale,
    **{f"aten::_fused_{kind}_": _fused_step for kind in ("adam", "adamw", "sgd", "adagrad")},
}
