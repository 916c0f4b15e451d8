"""DeepSpeed ZeRO: optimizer state, gradients and parameters sharded across the ranks."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from ..ddp.forward_guard import guard_layers, running_forward
from ..ddp.unwrap import ModuleAttributes, strip_wrapper_prefixes, unwrap_model
from ..process.options import get_option
from ..process.process_group import get_device, get_local_rank, get_rank, get_world_size, is_main_process
from .zero_config import ZeroTraining, fill_in, read_ds_config
from .zero_state import load_optimizer_state, load_whole_model, whole_model, whole_optimizer_state, whole_shapes


class ZeroModel(ModuleAttributes):
    """A model that DeepSpeed trains, and that looks like the wrapped module: attributes and names are its own.

    `wrap_optimizer` makes it ready to train. A parameter that takes no part in a loss counts as one whose gradient is
    zero, as everywhere in ZeRO: weight decay and momentum still change it. Collective: every rank, to construct it and
    for every forward and backward; under stage 3 for evaluations too (see `EvaluationBatches`).
    """

    is_transparent = True  # unwrap_model sees through it

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        if hasattr(module, "_orig_mod"):
            raise ValueError(
                "strategy deepspeed cannot wrap a compiled model: ZeRO gathers parameters in hooks that the compiled "
                "graph does not run; leave --compile out"
            )
        self.module = module
        self.__dict__["engine"] = None
        self.__dict__["trained"] = [parameter.requires_grad for parameter in module.parameters()]
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor.detach(), src=0)
        guard_layers(module)

    @property
    def stage(self) -> int:
        return int(self.__dict__["engine"].zero_optimization_stage()) if self.__dict__["engine"] else 0

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.module(*inputs, **kwargs)
        engine = _engine_of(self)
        if [parameter.requires_grad for parameter in self.module.parameters()] != self.__dict__["trained"]:
            raise RuntimeError(
                "a parameter was frozen or thawed after wrap_model, which DeepSpeed does not follow; set requires_grad "
                "before it, or use --strategy ddp"
            )
        if engine.bfloat16_enabled():
            inputs, kwargs = _lower(inputs), _lower(kwargs)
        with running_forward():
            return engine(*inputs, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the whole weights under the module's own names. Collective: every rank."""
        return whole_model(self, keep=True)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Put whole weights in. Collective: every rank, with the same ones."""
        return load_whole_model(self, strip_wrapper_prefixes(state_dict))

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        return self.module.named_buffers(*args, **kwargs)


class ZeroOptimizer(Optimizer):
    """The script's own optimizer as DeepSpeed runs it: groups to set rates in, `step`, and a state in torch's format.

    `step` clears the gradients as well. Collective: every rank, for `step` and for both states.
    """

    engine: Any
    inner: Optimizer
    layout: list[list[nn.Parameter]]  # the parameters of each group, which DeepSpeed replaces by flat pieces

    def __init__(self, engine: Any, inner: Optimizer, layout: list[list[nn.Parameter]]) -> None:
        # Not the base's: the groups are the inner optimizer's, and hooks have nothing to hold on to.
        self.__dict__.update(engine=engine, inner=inner, layout=layout, defaults=inner.defaults)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.engine.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.engine.optimizer.state

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if closure is not None:
            raise ValueError("DeepSpeed's step takes no closure; run forward and backward before it")
        with torch.no_grad():
            self.engine.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop gradients that no step has used; after a step there are none."""
        self.engine.optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        return whole_optimizer_state(self, keep=True)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        load_optimizer_state(self, state_dict)

    def __repr__(self) -> str:
        return f"ZeroOptimizer(stage {self.engine.zero_optimization_stage()}, {type(self.inner).__name__})"

    def __getstate__(self) -> Any:
        raise TypeError("a ZeroOptimizer cannot be copied or pickled; save its state_dict()")


def ZeroWrapper(model: nn.Module) -> ZeroModel:
    """Return `model` for DeepSpeed, which takes it over in `wrap_optimizer`; rank 0's weights are every rank's.

    Collective: every rank. Raises RuntimeError without the package, ValueError for a compiled model.
    """
    import_deepspeed()
    return ZeroModel(model)


def make_zero(
    model: ZeroModel, optimizer: Optimizer, *, micro_batch: int, accum_steps: int, amp: str, clip_grad: float
) -> ZeroOptimizer:
    """Let DeepSpeed take over a model and its optimizer, and return what to step instead.

    Collective: every rank. Raises what `fill_in` raises, RuntimeError when the model has an optimizer already.
    """
    if model.__dict__["engine"] is not None:
        raise RuntimeError("DeepSpeed trains a model with one optimizer, and this one has its own already")
    if optimizer.state:
        raise RuntimeError("the optimizer has a state already; hand it over first and load the state afterwards")
    path = get_option("ds_config")
    training = ZeroTraining(
        get_world_size(), micro_batch, accum_steps, amp, clip_grad, get_option("zero_stage"), type(optimizer).__name__
    )
    config = fill_in(read_ds_config(path), training, f"--ds_config {path}" if path else "DeepSpeed")
    layout = [list(group["params"]) for group in optimizer.param_groups if group["params"]]
    deepspeed = import_deepspeed()
    place = argparse.Namespace(device_rank=get_device().index or 0)
    _complete_environment()
    engine, *_ = deepspeed.initialize(
        args=place, model=model.module, optimizer=optimizer, config=config, dist_init_required=False
    )
    model.__dict__["engine"] = engine
    return ZeroOptimizer(engine, optimizer, layout)


def backward_zero(model: ZeroModel, loss: torch.Tensor) -> None:
    """Run backward: the loss is that of the whole step already, and so DeepSpeed must not divide it any more."""
    _engine_of(model).backward(loss, scale_wrt_gas=False)


def check_clipping(model: ZeroModel, max_norm: float) -> None:
    """Raise ValueError unless DeepSpeed clips, as it does in its step, at `max_norm`."""
    clipped_at = _engine_of(model).gradient_clipping()
    if float(max_norm) != clipped_at:
        raise ValueError(
            f"gradients are to be clipped at {max_norm}, but DeepSpeed was told {clipped_at}; give wrap_optimizer "
            f"clip_grad={max_norm}"
        )


@contextmanager
def zero_sync(model: ZeroModel, enabled: bool) -> Iterator[None]:
    """Tell DeepSpeed which micro batch is the last of a step."""
    engine = _engine_of(model)
    engine.set_gradient_accumulation_boundary(enabled)
    try:
        yield
    finally:
        engine.set_gradient_accumulation_boundary(True)


@contextmanager
def gathered_zero(model: ZeroModel) -> Iterator[None]:
    """Have the whole parameters in the block, to read. Collective: every rank."""
    if model.stage < 3:
        yield
        return
    with import_deepspeed().zero.GatheredParameters(list(model.parameters())):
        yield


def state_for_file(part: Any) -> Any:
    """Return what a file holds of a model or an optimizer under any strategy: names without prefix.

    Under DeepSpeed the state is whole on rank 0 alone, which writes it. Collective then: every rank.
    """
    if isinstance(part, ZeroModel):
        return whole_model(part, keep=is_main_process())
    if isinstance(part, ZeroOptimizer):
        return whole_optimizer_state(part, keep=is_main_process())
    return (unwrap_model(part) if isinstance(part, nn.Module) else part).state_dict()


def refuse_sharded(model: nn.Module) -> None:
    """Raise ValueError for a model whose state has no shards that a sharded checkpoint could hold."""
    if isinstance(model, ZeroModel):
        raise ValueError(
            "--ckpt sharded does not know DeepSpeed's flat shards (--strategy deepspeed); use --ckpt full, or "
            "--strategy fsdp"
        )


def own_state(model: nn.Module) -> Mapping[str, Any]:
    """Return the names and shapes of a model's whole state; under DeepSpeed without values. No communication."""
    return whole_shapes(model) if isinstance(model, ZeroModel) else unwrap_model(model).state_dict()


def loadable(model: nn.Module) -> nn.Module:
    """Return what `load_state_dict` is called of: DeepSpeed's wrapper, which shards weights; else the module itself."""
    return model if isinstance(model, ZeroModel) else unwrap_model(model)


def gathers_in_forward(model: nn.Module) -> bool:
    """Return whether ZeRO gathers parameters in the forward pass, so that every rank must run it equally often."""
    return isinstance(model, ZeroModel) and model.stage == 3


def import_deepspeed() -> Any:
    """Return the module deepspeed. Raises RuntimeError, which says how to install it, if it cannot be imported."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # or it looks for every kind and warns
    try:
        import deepspeed
    except ImportError as error:
        raise RuntimeError(
            f"strategy deepspeed needs the package deepspeed, which cannot be imported ({error}); "
            "pip install 'deepspeed>=0.19', or use --strategy fsdp"
        ) from error
    # On a CPU it would compile an all-reduce over shared memory first, which takes a minute and fills a cache at home.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if "DEEPSPEED_LOG_LEVEL" not in os.environ:
        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    return deepspeed


def _complete_environment() -> None:
    """Have what a launcher sets, where there was none (Slurm, one process): DeepSpeed reads LOCAL_RANK in every step.

    All of it, because a part of it is an error of `read_environment`.
    """
    place = {"RANK": get_rank(), "WORLD_SIZE": get_world_size(), "LOCAL_RANK": get_local_rank()}
    for name, value in place.items():
        os.environ.setdefault(name, str(value))


def _engine_of(model: ZeroModel) -> Any:
    engine = model.__dict__["engine"]
    if engine is None:
        raise RuntimeError(
            "a DeepSpeed model cannot be trained before its optimizer is there; write "
            "optimizer = wrap_optimizer(model, optimizer)"
        )
    return engine


def _lower(value: Any) -> Any:
    """Return inputs in the parameters' bfloat16: DeepSpeed casts them for fp16 alone."""
    if isinstance(value, torch.Tensor):
        return value.to(torch.bfloat16) if value.is_floating_point() else value
    if isinstance(value, Mapping):
        return {key: _lower(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_lower(entry) for entry in value)
    return value
