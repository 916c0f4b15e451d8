"""DeepSpeed's configuration: a JSON file of the user's, filled in with what the training itself already says."""

from __future__ import annotations

import copy
import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

AUTO = "auto"  # what files for other trainers write where the trainer fills in
# Optimizers that change every element by itself: ZeRO gives them flat pieces of many parameters. DeepSpeed makes
# torch's Adagrad a second time, without its groups, and so it is not among them.
ELEMENTWISE = frozenset(("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "Adadelta", "ASGD"))
SECTIONS = frozenset(
    [
        "activation_checkpointing",
        "aio",
        "amp",
        "autotuning",
        "bf16",
        "bfloat16",
        "checkpoint",
        "comms_logger",
        "communication_data_type",
        "compile",
        "compression_training",
        "csv_monitor",
        "comet",
        "curriculum_learning",
        "data_efficiency",
        "data_types",
        "dataloader_drop_last",
        "disable_allgather",
        "disable_python_gc",
        "dump_state",
        "elasticity",
        "expert_parallel",
        "flops_profiler",
        "fp16",
        "gradient_accumulation_steps",
        "gradient_allreduce_op",
        "gradient_clipping",
        "gradient_predivide_factor",
        "hybrid_engine",
        "keep_in_fp32_modules",
        "log_level",
        "managed_gradient_accumulation",
        "memory_breakdown",
        "monitor",
        "nebula",
        "optimizer",
        "pipeline",
        "prescale_gradients",
        "progressive_layer_drop",
        "scheduler",
        "seq_parallel_communication_data_type",
        "sparse_attention",
        "sparse_gradients",
        "steps_per_print",
        "tensor_parallel",
        "tensorboard",
        "timers",
        "torch_autocast",
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "use_data_before_expert_parallelism",
        "vocabulary_size",
        "wall_clock_breakdown",
        "wandb",
        "weight_quantization",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "zero_optimization",
        "sequence_parallel_size",
        "data_parallel_size",
        "torch_adam",
    ]
)


@dataclass(frozen=True)
class ZeroTraining:
    """What the training says: batch sizes in samples, `amp` off or bf16, `clip_grad` a norm (0: none), `stage` 0-3."""

    world_size: int
    micro_batch: int
    accum_steps: int
    amp: str
    clip_grad: float
    stage: int
    optimizer: str  # the name of its class


def read_ds_config(path: str) -> dict[str, Any]:
    """Return the content of a `--ds_config` file, {} for "". Raises FileNotFoundError, ValueError for bad JSON."""
    if not path:
        return {}
    if not Path(path).is_file():
        raise FileNotFoundError(f"no --ds_config file at {path}; give a JSON file that exists, or leave the flag out")
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8"), object_pairs_hook=_no_duplicates)
    except ValueError as error:
        raise ValueError(f"--ds_config {path} is not valid JSON ({error}); correct it") from error
    if not isinstance(config, dict):
        raise ValueError(f"--ds_config {path} holds a {type(config).__name__}, not an object; write {{...}}")
    return config


def fill_in(given: Mapping[str, Any], training: ZeroTraining, name: str = "the DeepSpeed config") -> dict[str, Any]:
    """Return a DeepSpeed configuration: `given`, with every key that the training itself decides filled in.

    Raises ValueError for a key that DeepSpeed does not know, one that contradicts the training, and one that would
    make it another training. `name` is what the errors call `given`.
    """
    config = copy.deepcopy(dict(given))
    _refuse_unknown(config, name)
    _refuse_other_trainings(config, training, name)
    _check_precision(config, training, name)
    global_batch = training.world_size * training.micro_batch * training.accum_steps
    decided = {
        ("train_micro_batch_size_per_gpu",): (training.micro_batch, "the batch per process"),
        ("gradient_accumulation_steps",): (training.accum_steps, "accum_steps"),
        ("train_batch_size",): (global_batch, "the global batch"),
        ("gradient_clipping",): (float(training.clip_grad), "clip_grad"),
        ("zero_optimization", "stage"): (training.stage, "--zero_stage"),
    }
    for keys, (value, meaning) in decided.items():
        _decide(config, keys, value, meaning, name)
    config.setdefault("zero_allow_untested_optimizer", training.optimizer in ELEMENTWISE)
    if config["zero_optimization"].get("offload_optimizer"):
        config.setdefault("zero_force_ds_cpu_optimizer", False)  # the optimizer is the script's own
    if training.amp == "bf16" and not _enabled(config, "bf16"):
        # Gradients travel as they are in the other strategies: no layer's in low precision.
        _fill(config, "torch_autocast", {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": []})
    return config


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(f"key {twice[0]!r} appears twice")
    return dict(pairs)


def _decide(config: dict[str, Any], keys: tuple[str, ...], value: Any, meaning: str, name: str) -> None:
    """Set what `keys` lead to, unless the file has another value there."""
    section = config
    for key in keys[:-1]:
        section = section.setdefault(key, {})
        if not isinstance(section, dict):
            raise ValueError(f"{name}: {key} is {section!r}, not an object; write {{...}}")
    found = section.get(keys[-1], AUTO)
    if found != AUTO and found != value:
        raise ValueError(
            f"{name}: {'.'.join(keys)} is {found!r} there, but {meaning} is {value!r} here; take the key out of the "
            f"file, which fills it in, or make {meaning} {found!r}"
        )
    section[keys[-1]] = value


def _fill(config: dict[str, Any], key: str, defaults: Mapping[str, Any]) -> None:
    config[key] = {**defaults, **{name: value for name, value in config.get(key, {}).items() if value != AUTO}}


def _refuse_unknown(config: Mapping[str, Any], name: str) -> None:
    for key in config:
        if key not in SECTIONS:
            near = difflib.get_close_matches(key, SECTIONS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else "take it out"
            raise ValueError(f"{name}: DeepSpeed has no key {key!r} and would ignore it; {hint}")


def _refuse_other_trainings(config: dict[str, Any], training: ZeroTraining, name: str) -> None:
    """Refuse what replaces the script's own optimizer, or changes which gradient it is given."""
    for key in ("optimizer", "scheduler"):
        if config.get(key):
            kind = config[key].get("type") if isinstance(config[key], dict) else config[key]
            raise ValueError(
                f"{name}: {key} is {kind!r} there, but the script has its own ({training.optimizer}, and whatever sets "
                f"its rate); take {key!r} out of the file and choose it in the script"
            )
        config.pop(key, None)
    fixed = {
        "gradient_allreduce_op": ("mean", "the loss is normalised for a mean over ranks"),
        "managed_gradient_accumulation": (True, "gradient_sync tells where a step ends"),
        "sequence_parallel_size": (1, "every rank has samples of its own"),
        "data_parallel_size": (training.world_size, "every rank has samples of its own"),
    }
    for key, (value, reason) in fixed.items():
        found = config.get(key, value)
        if (found.lower() if isinstance(found, str) else found) != value:
            raise ValueError(f"{name}: {key} is {found!r}, but it must be {value!r} here: {reason}; take it out")
    for key in ("tensor_parallel", "expert_parallel", "pipeline", "compression_training", "elasticity"):
        if config.get(key):
            raise ValueError(f"{name}: {key} is not supported here, only ZeRO is; take it out")
    if training.stage and training.optimizer not in ELEMENTWISE and not config.get("zero_allow_untested_optimizer"):
        raise ValueError(
            f"ZeRO hands the optimizer flat pieces of parameters, and {training.optimizer} is not known to change "
            f"every element by itself; use one of {', '.join(sorted(ELEMENTWISE))}, --zero_stage 0, or, if it does, "
            'set "zero_allow_untested_optimizer": true in --ds_config'
        )


def _check_precision(config: dict[str, Any], training: ZeroTraining, name: str) -> None:
    if training.amp not in ("off", "bf16"):
        raise ValueError(
            f"strategy deepspeed trains with amp off or bf16, not {training.amp!r}; use --amp bf16, or --strategy ddp"
        )
    if "bfloat16" in config:  # its old name
        config["bf16"] = config.pop("bfloat16")
    for key, precision in (("fp16", "fp16"), ("amp", "fp16"), ("bf16", "bf16"), ("torch_autocast", "bf16")):
        if isinstance(config.get(key), dict) and config[key].get("enabled") == AUTO:
            config[key]["enabled"] = key != "torch_autocast" and precision == training.amp
        if _enabled(config, key) and precision != training.amp:
            raise ValueError(
                f"{name}: {key}.enabled is true there, but amp is {training.amp!r} here; take {key!r} out of the file"
                + (f", or use --amp {precision}" if precision == "bf16" else ", and use --amp bf16 to save memory")
            )
    if training.amp != "off":
        for key in ("bf16", "torch_autocast"):
            if isinstance(config.get(key), dict) and config[key].get("enabled") is False and key == "torch_autocast":
                raise ValueError(f"{name}: {key}.enabled is false there, but amp is {training.amp!r}; take it out")
        dtype = config.get("torch_autocast", {}).get("dtype", AUTO)
        if dtype not in (AUTO, "bfloat16", "bf16"):
            raise ValueError(f"{name}: torch_autocast.dtype is {dtype!r} there, but amp is 'bf16'; take it out")
    if _enabled(config, "bf16") and training.stage == 0:
        raise ValueError(f"{name}: bf16 without ZeRO keeps no float32 weights; use --zero_stage 1, or take bf16 out")


def _enabled(config: Mapping[str, Any], key: str) -> bool:
    return isinstance(config.get(key), Mapping) and config[key].get("enabled") is True
