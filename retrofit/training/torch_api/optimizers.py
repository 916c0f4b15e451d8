"""Optimizers and learning-rate schedules, of torch and of other packages."""

from __future__ import annotations

import re

# Where torch's optimizers are, the dictionary of their classes among these, and their first parameters.
OPTIMIZER_MODULES = ("torch.optim",)
OPTIMIZER_TABLES = frozenset({"torch.optim.__dict__", "vars"})
OPTIMIZER_PARAMETERS = ["params", "lr"]
REPEATED_EVALUATION = frozenset({"torch.optim.LBFGS"})  # of the loss, within one step
# Those whose steps do not grow with the gradients.
ADAPTIVE = frozenset(f"torch.optim.{name}" for name in (
    "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "Rprop",
))  # fmt: skip
# Other packages with optimizers, and how their classes and functions are called.
OPTIMIZER_PACKAGES = frozenset({
    "torch_optimizer", "apex", "adabound", "transformers", "pytorch_transformers", "timm", "bitsandbytes",
    "lion_pytorch", "adabelief_pytorch", "pytorch_optimizer", "adamp", "madgrad", "ranger", "ranger_adabelief",
    "pytorch_ranger", "adan_pytorch", "adan", "sophia", "came_pytorch", "galore_torch", "schedulefree", "radam",
    "diffgrad", "torch_lamb", "pytorch_lamb", "pytorch_pretrained_bert", "muon", "novograd", "lamb", "adabelief",
})  # fmt: skip
OPTIMIZER_NAMES = re.compile(
    r"SGD|Adam|Ada|Adan|Lamb|LAMB|Lars|LARS|RMSprop|Lion|Ranger|Novo|Sophia|CAME|Muon|MADGRAD|Yogi|QHM|DiffGrad"
)
NO_OPTIMIZERS = ("Config", "Model", "Scheduler", "LR", "Schedule", "Tokenizer", "Layer", "Norm")  # so they end
OPTIMIZER_FUNCTIONS = re.compile(r"^create_optimizer")

# Schedules of torch by the package, of any package by their names; the one that is told a figure.
SCHEDULES = "torch.optim.lr_scheduler."
SCHEDULE_NAMES = re.compile(r"schedul|LR$|warm_?up|restarts|annealing", re.IGNORECASE)
ON_PLATEAU = "torch.optim.lr_scheduler.ReduceLROnPlateau"
# The parameters, in their order, of schedules that are given learning rates, and those of them that are rates.
SCHEDULE_PARAMETERS = {
    "OneCycleLR": "optimizer max_lr",
    "CyclicLR": "optimizer base_lr max_lr",
    "CosineAnnealingLR": "optimizer T_max eta_min",
    "CosineAnnealingWarmRestarts": "optimizer T_0 T_mult eta_min",
    "ReduceLROnPlateau": "optimizer mode factor patience threshold threshold_mode cooldown min_lr",
    "SWALR": "optimizer swa_lr",
    "CosineLRScheduler": "optimizer t_initial lr_min",
}
RATES_OF_SCHEDULES = frozenset({"max_lr", "base_lr", "eta_min", "min_lr", "swa_lr", "lr_min"})
# Finders of learning rates: they train for some steps, and record the loss at each rate; the parameters of theirs.
RATE_FINDERS = frozenset({"torch_lr_finder.LRFinder", "torch_lr_finder.lr_finder.LRFinder"})
RATE_FINDER_PARAMETERS = ["model", "optimizer", "criterion"]
RANGE_TESTS = frozenset(f"{finder}.range_test" for finder in RATE_FINDERS)
