"""Detect calls that create an optimizer: a class of torch.optim, one derived from it, a partial of either."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from retrofit.analysis.scopes import Scope, parameters
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import External, Item, LocalClass, Result, Value, name_of

MODULES = ("torch.optim",)
PACKAGES = {
    "torch_optimizer", "apex", "adabound", "transformers", "pytorch_transformers", "timm", "bitsandbytes",
    "lion_pytorch", "adabelief_pytorch", "pytorch_optimizer", "adamp", "madgrad", "ranger", "ranger_adabelief",
    "pytorch_ranger", "adan_pytorch", "adan", "sophia", "came_pytorch", "galore_torch", "schedulefree", "radam",
    "diffgrad", "torch_lamb", "pytorch_lamb", "pytorch_pretrained_bert", "muon", "novograd", "lamb", "adabelief",
}  # fmt: skip
OPTIMIZER = re.compile(
    r"SGD|Adam|Ada|Adan|Lamb|LAMB|Lars|LARS|RMSprop|Lion|Ranger|Novo|Sophia|CAME|Muon|MADGRAD|Yogi|QHM|DiffGrad"
)
NO_OPTIMIZERS = ("Config", "Model", "Scheduler", "LR", "Schedule", "Tokenizer", "Layer", "Norm")
MAKING = re.compile(r"^create_optimizer")  # timm.optim.create_optimizer_v2(model, lr=0.1)
POSITIONS = ["params", "lr"]  # of the arguments of every class in torch.optim
TABLES = {"torch.optim.__dict__", "vars"}


@dataclass(frozen=True)
class Maker:
    """One class of optimizers that a call can run; "" as `name` is something else."""

    name: str
    partial: Result | None = None  # that holds arguments too
    local: Scope | None = None  # the class, where it is one of the project


def makers_in(analysis: Analysis, call: ast.Call, scope: Scope) -> list[Maker]:
    """Return what a call can run, of which some may make optimizers; nothing where it is not known."""
    return [maker for value in analysis.evaluate(call.func, scope) for maker in _makers(analysis, value, None)]


def positions_of(analysis: Analysis, maker: Maker) -> list[str]:
    """Return the names of the positional arguments of a class of optimizers."""
    if MAKING.match(maker.name):
        return ["params"]
    own = _own_arguments(analysis, maker)
    return POSITIONS if own is None else own


def takes_rate(analysis: Analysis, maker: Maker) -> bool:
    """Return whether a class has a learning rate of its own: not one that changes how another optimizer steps."""
    return bool({"lr", "params"} & set(positions_of(analysis, maker)))


def _own_arguments(analysis: Analysis, maker: Maker) -> list[str] | None:
    """Return the arguments of a class of the project; None where it hands on what it is given: *args, **kwargs."""
    own = analysis.classes.method(maker.local, "__init__") if maker.local is not None else None
    if own is None or isinstance(own.node, ast.Lambda):
        return None
    names = parameters(own.node)[1:]
    return None if not names and own.node.args.vararg is not None else names


def _makers(analysis: Analysis, value: Value, partial: Result | None) -> list[Maker]:
    if isinstance(value, Result) and value.is_partial and partial is None:
        inner = analysis.evaluate(value.call.args[0], value.scope)
        return [maker for function in inner for maker in _makers(analysis, function, value)]
    if isinstance(value, External):
        return [Maker(_class_name(value.name), partial)]
    if isinstance(value, LocalClass):
        names = (_class_name(base) for base in sorted(analysis.classes.bases(value.scope)))
        return [Maker(next((name for name in names if name), ""), partial, value.scope)]
    if isinstance(value, Result):  # getattr(torch.optim, name)
        modules = analysis.named(value.call.args[0], value.scope) if _is_getattr(value) else set()
        return [Maker("getattr" if "torch.optim" in modules else "", partial)] + [Maker("")] * (len(modules) > 1)
    if isinstance(value, Item):  # torch.optim.__dict__[name], vars(torch.optim)[name]
        of = value.base.call.args[:1] if isinstance(value.base, Result) else []
        is_own = name_of(value.base) in TABLES and all("torch.optim" in analysis.named(a, value.base.scope) for a in of)  # type: ignore[union-attr]
        return [Maker("__dict__" if is_own else "", partial)]
    return [Maker("")]


def _is_getattr(value: Result) -> bool:
    return value.maker == "getattr" and bool(value.call.args)


def _class_name(full: str) -> str:
    """Return `SGD` of torch.optim.SGD and of torch.optim.sgd.SGD, "" of everything else."""
    module, _, name = full.rpartition(".")
    is_scheduler = module.startswith("torch.optim.lr_scheduler") or module.startswith("torch.optim.swa_utils")
    if module.partition(".")[0] in PACKAGES:
        is_class = OPTIMIZER.search(name) is not None and name[:1].isupper()
        return name if MAKING.match(name) or (is_class and not name.endswith(NO_OPTIMIZERS)) else ""
    is_known = module in MODULES or (module.startswith("torch.optim.") and not is_scheduler)
    return name if is_known and name[:1].isupper() else ""
