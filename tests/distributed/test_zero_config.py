"""What DeepSpeed is told: the user's file, filled in with what the training says, or refused."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
from torch import nn

from retrofit.distributed.strategies.select import wrap_model, wrap_optimizer
from retrofit.distributed.strategies.zero import import_deepspeed
from retrofit.distributed.strategies.zero_config import ZeroTraining, fill_in, read_ds_config

TRAINING = ZeroTraining(
    world_size=2, micro_batch=4, accum_steps=3, amp="off", clip_grad=1.0, stage=2, optimizer="AdamW"
)


def test_missing_values_are_filled_in_from_the_training():
    assert fill_in({}, TRAINING) == {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 3,
        "train_batch_size": 24,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
    }


def test_values_that_agree_are_kept():
    given = {
        "train_batch_size": 24,
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": 1,
        "zero_optimization": {"stage": 2, "overlap_comm": False, "offload_optimizer": {"device": "cpu"}},
        "bf16": {"enabled": "auto"},
        "wall_clock_breakdown": True,
    }
    before = json.dumps(given)
    config = fill_in(given, TRAINING)
    assert json.dumps(given) == before, "the user's own is not changed"
    assert config["gradient_accumulation_steps"] == 3 and config["wall_clock_breakdown"] is True
    assert config["zero_optimization"] == {"stage": 2, "overlap_comm": False, "offload_optimizer": {"device": "cpu"}}
    assert config["zero_force_ds_cpu_optimizer"] is False and config["bf16"] == {"enabled": False}


def test_bf16_is_autocast_over_float32_weights_unless_the_file_has_weights_in_bf16():
    training = replace(TRAINING, amp="bf16")
    autocast = {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": []}
    assert fill_in({}, training)["torch_autocast"] == autocast
    assert "torch_autocast" not in fill_in({"bf16": {"enabled": True}}, training)
    assert fill_in({"torch_autocast": {"dtype": "auto"}}, training)["torch_autocast"] == autocast


@pytest.mark.parametrize(
    "given, message",
    [
        ({"train_batch_size": 32}, "train_batch_size is 32 there, but the global batch is 24 here; take the key out"),
        ({"train_micro_batch_size_per_gpu": 8}, "train_micro_batch_size_per_gpu is 8 there, but the batch per process"),
        ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps is 4 there, but accum_steps is 3 here"),
        ({"gradient_clipping": 0.5}, "gradient_clipping is 0.5 there, but clip_grad is 1.0 here"),
        ({"zero_optimization": {"stage": 3}}, "zero_optimization.stage is 3 there, but --zero_stage is 2 here"),
        ({"zero_optimization": 3}, "zero_optimization is 3, not an object"),
        ({"optimizer": {"type": "Lamb"}}, "optimizer is 'Lamb' there, but the script has its own .AdamW"),
        ({"scheduler": {"type": "WarmupLR"}}, "scheduler is 'WarmupLR' there"),
        ({"bf16": {"enabled": True}}, "bf16.enabled is true there, but amp is 'off' here; .* or use --amp bf16"),
        ({"fp16": {"enabled": True}}, "fp16.enabled is true there, but amp is 'off' here"),
        ({"gradient_allreduce_op": "sum"}, "gradient_allreduce_op is 'sum', but it must be 'mean' here: the loss"),
        ({"managed_gradient_accumulation": False}, "managed_gradient_accumulation is False, but it must be True"),
        ({"sequence_parallel_size": 2}, "sequence_parallel_size is 2, but it must be 1"),
        ({"tensor_parallel": {"autotp_size": 2}}, "tensor_parallel is not supported here"),
        ({"gradient_cliping": 1.0}, "no key 'gradient_cliping' and would ignore it; did you mean 'gradient_clipping'"),
        ({"zzz": 1}, "no key 'zzz' and would ignore it; take it out"),
    ],
)
def test_a_contradiction_is_refused(given, message):
    with pytest.raises(ValueError, match=f"^--ds_config a.json: .*{message}"):
        fill_in(given, TRAINING, "--ds_config a.json")


@pytest.mark.parametrize(
    "changes, given, message",
    [
        ({"amp": "fp16"}, {}, "amp off or bf16, not 'fp16'; use --amp bf16"),
        ({"amp": "bf16"}, {"torch_autocast": {"enabled": False}}, "torch_autocast.enabled is false there"),
        ({"amp": "bf16"}, {"torch_autocast": {"dtype": "float16"}}, "torch_autocast.dtype is 'float16' there"),
        ({"amp": "bf16", "stage": 0}, {"bf16": {"enabled": True}}, "use --zero_stage 1"),
        ({"optimizer": "LARS"}, {}, "LARS is not known to change every element by itself; use one of ASGD, Adadelta"),
        ({"optimizer": "Adagrad"}, {}, "Adagrad is not known"),
    ],
)
def test_options_that_change_the_training_are_refused(changes, given, message):
    with pytest.raises(ValueError, match=message):
        fill_in(given, replace(TRAINING, **changes))


def test_another_optimizer_needs_the_consent_of_the_user():
    training = replace(TRAINING, optimizer="Lion")
    assert fill_in({"zero_allow_untested_optimizer": True}, training)["zero_allow_untested_optimizer"] is True
    assert fill_in({}, replace(training, stage=0))["zero_optimization"] == {"stage": 0}


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "is not valid JSON"),
        ("[1]", "holds a list, not an object"),
        ('{"bf16": {}, "bf16": {}}', "key 'bf16' appears twice"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path, text, message):
    path = tmp_path / "zero.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_ds_config(str(path))


def test_a_missing_file_is_reported(tmp_path):
    assert read_ds_config("") == {}
    with pytest.raises(FileNotFoundError, match="no --ds_config file at"):
        read_ds_config(str(tmp_path / "none.json"))


def test_a_config_without_deepspeed_is_not_ignored(monkeypatch):
    monkeypatch.setenv("RETROFIT_DS_CONFIG", "zero.json")
    with pytest.raises(
        ValueError, match=r"--ds_config zero\.json is of no use to --strategy auto; add --strategy deep"
    ):
        wrap_model(nn.Linear(2, 2))


def test_one_process_needs_no_deepspeed(monkeypatch):
    monkeypatch.setenv("RETROFIT_STRATEGY", "deepspeed")
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    model, optimizer = nn.Linear(2, 2), object()
    assert wrap_model(model) is model
    assert wrap_optimizer(model, optimizer) is optimizer


def test_a_missing_package_is_an_error_that_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    with pytest.raises(RuntimeError, match=r"; pip install 'deepspeed>=0.19', or use --strategy fsdp"):
        import_deepspeed()
