"""DeepSpeed ZeRO on two real ranks: the training of one process, and checkpoints that fit every strategy."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from training import run_training

import retrofit.distributed as rd
from segmentation.models import build_model

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 10), reason="pyproject.toml installs deepspeed from Python 3.10 on"
)
ROOT = Path(__file__).resolve().parents[2]
BATCH, STEPS = 12, 4
STAGES = (0, 1, 2, 3)


@pytest.fixture
def pair(zero_ranks):
    return zero_ranks(2)


class Model(nn.Module):
    """Sizes that two ranks cannot halve, a frozen layer, tied weights and a buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.frozen = nn.Linear(5, 7), nn.Linear(7, 7)
        self.norm, self.last = nn.LayerNorm(7), nn.Linear(7, 3)
        self.shadow = nn.Linear(7, 3)
        self.shadow.weight = self.last.weight
        self.register_buffer("scale", torch.tensor(0.5))
        self.frozen.requires_grad_(False)
        self.num_outputs = 3

    def forward(self, x):
        features = self.norm(torch.tanh(self.frozen(self.first(x))))
        return self.last(features) + self.scale * self.shadow(features)


def new_model():
    torch.manual_seed(0)
    return Model()


def new_optimizer(model, kind):
    rest = [p for name, p in model.named_parameters() if not name.startswith("first")]
    groups = [{"params": list(model.first.parameters()), "lr": 0.02}, {"params": rest}]
    if kind == "sgd":
        return torch.optim.SGD(groups, 0.1, momentum=0.9, weight_decay=1e-2)
    return torch.optim.AdamW(groups, 0.05)


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(BATCH, 5, generator=generator), torch.randn(BATCH, 3, generator=generator)


@contextlib.contextmanager
def options(strategy, stage, config=""):
    """Set the runtime's options by their twins. What DeepSpeed needs in the environment stays there."""
    twins = {"RETROFIT_STRATEGY": strategy, "RETROFIT_ZERO_STAGE": str(stage), "RETROFIT_DS_CONFIG": config}
    os.environ.update(twins)
    try:
        yield
    finally:
        for name in twins:
            del os.environ[name]


def train(kind, strategy="ddp", stage=0, accum=1, clip=0.0, amp="off", config="", first=0, load="", save=""):
    """Train STEPS steps from step `first` on and return losses of the global batches, weights and optimizer state."""
    with options(strategy, stage, config):
        model = rd.strategies.select.wrap_model(new_model())
        sizes = {"micro_batch": BATCH // rd.get_world_size() // accum, "accum_steps": accum}
        optimizer = rd.strategies.wrap_optimizer(model, new_optimizer(model, kind), **sizes, amp=amp, clip_grad=clip)
        rd.environment.read_environment(os.environ)  # which half of a launcher's variables would be an error for
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    if load:
        rd.load_checkpoint(model, optimizer, load, scheduler=scheduler)
    losses = []
    for step in range(first, first + STEPS):
        share = 0.0
        for number, (x, y) in enumerate(micro_batches(step, accum), start=1):
            with rd.strategies.gradient_sync(model, enabled=number == accum):
                with torch.autocast("cpu", torch.bfloat16, enabled=amp == "bf16"):
                    output = model(x)
                loss = ((output.float() - y) ** 2).sum() / rd.loss.rank_share(BATCH * 3)
                rd.strategies.backward(model, loss)
            share += loss.item() / rd.get_world_size()
        losses.append(rd.sum_over_ranks(share))
        if clip:
            rd.strategies.clip_grad_norm(model, clip)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    if save:
        rd.save_checkpoint(model, optimizer, 1, save, scheduler=scheduler)
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return {"losses": losses, "weights": weights, "optimizer": copy.deepcopy(optimizer.state_dict())}


def micro_batches(step, accum):
    shares = [part.chunk(rd.get_world_size())[rd.get_rank()].chunk(accum) for part in batch(step)]
    return list(zip(*shares))


def assert_same_training(results, expected, tolerance=1e-5):
    for result in results:
        assert result["losses"] == pytest.approx(expected["losses"], rel=tolerance)
        assert result["weights"].keys() == expected["weights"].keys()
        for name, value in expected["weights"].items():
            torch.testing.assert_close(result["weights"][name], value, rtol=tolerance, atol=tolerance)
            assert torch.equal(result["weights"][name], results[0]["weights"][name]), f"ranks differ in {name}"
        assert_same_state(result["optimizer"], expected["optimizer"], tolerance)


def assert_same_state(one, other, tolerance=0.0):
    assert one["param_groups"] == other["param_groups"]
    assert one["state"].keys() == other["state"].keys()
    for index, entry in other["state"].items():
        assert one["state"][index].keys() == entry.keys()
        for key, value in entry.items():
            torch.testing.assert_close(one["state"][index][key], value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("stage", STAGES)
def test_two_ranks_train_the_same_model_as_one_process(pair, stage, kind):
    expected = train(kind, "single")
    for accum in (1, 2, 3):
        assert_same_training(pair.run(train, kind, "deepspeed", stage, accum), expected)


def save_in_the_background(folder, stage):
    """Save at once as `now`; then as `later`, whose file is written when all of the training has changed."""
    from retrofit.distributed.checkpoint import full as checkpoint

    changed = threading.Event()

    def write_late(*args):
        assert changed.wait(60)
        write_atomically(*args)

    write_atomically = checkpoint.write_atomically

    def save_both(model, optimizer, epoch, path, **extra):
        real(model, optimizer, epoch, f"{folder}/now", asynchronous=False, **extra)
        with mock.patch.object(checkpoint, "write_atomically", write_late):
            real(model, optimizer, epoch, f"{folder}/later", asynchronous=True, **extra)
        with torch.no_grad():
            for tensor in (*model.module.parameters(), *model.module.buffers()):
                tensor.add_(1)
            for state in optimizer.engine.basic_optimizer.state.values():
                for value in state.values():
                    value.add_(1)
        extra["scheduler"].base_lrs.append(7.0)
        changed.set()
        rd.checkpoint.finish_saves()

    real = rd.save_checkpoint
    with mock.patch.object(rd, "save_checkpoint", save_both):
        train("adamw", "deepspeed", stage, save=folder)


@pytest.mark.parametrize("stage", STAGES)
def test_a_background_save_holds_the_moment_of_its_call(pair, tmp_path, stage):
    pair.run(save_in_the_background, str(tmp_path), stage)
    now, later = (rd.checkpoint.read_checkpoint(tmp_path / name) for name in ("now", "later"))
    for name, value in now["model"].items():
        assert torch.equal(value, later["model"][name]), name
    assert_same_state(now["optimizer"], later["optimizer"])
    assert now["scheduler"] == later["scheduler"] and 7.0 not in now["scheduler"]["base_lrs"]


@pytest.mark.parametrize("stage", STAGES)
def test_gradients_are_clipped_by_the_norm_over_all_ranks(pair, stage):
    expected = train("sgd", "single", clip=0.1)
    assert expected["losses"][1:] != pytest.approx(train("sgd", "single")["losses"][1:], rel=1e-3)
    assert_same_training(pair.run(train, "sgd", "deepspeed", stage, 2, 0.1), expected)


@pytest.mark.parametrize(
    "stage, settings",
    [
        (1, {"prescale_gradients": True, "gradient_predivide_factor": 2.0}),
        (3, {"stage3_param_persistence_threshold": 0}),
    ],
)
def test_options_of_a_deepspeed_file_give_the_same_training(pair, tmp_path, stage, settings):
    path = tmp_path / "zero.json"
    zero = {key: value for key, value in settings.items() if key.startswith("stage3")}
    path.write_text(json.dumps({**{k: v for k, v in settings.items() if k not in zero}, "zero_optimization": zero}))
    results = pair.run(train, "sgd", "deepspeed", stage, 2, 0.0, "off", str(path))
    assert_same_training(results, train("sgd", "single"))


@pytest.mark.parametrize("stage", STAGES)
def test_bf16_is_the_same_as_under_ddp(pair, stage):
    expected = pair.run(train, "sgd", "ddp", 0, 1, 0.0, "bf16")[0]
    assert expected["losses"] != pytest.approx(train("sgd", "single")["losses"], rel=1e-5)
    assert_same_training(pair.run(train, "sgd", "deepspeed", stage, 1, 0.0, "bf16"), expected)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_weights_in_bf16_keep_float32_masters_which_the_checkpoint_holds(pair, tmp_path, stage):
    path, saved = tmp_path / "zero.json", tmp_path / "saved.pt"
    path.write_text('{"bf16": {"enabled": true}}')
    results = pair.run(train, "adamw", "deepspeed", stage, 2, 0.0, "bf16", str(path), 0, "", str(saved))
    assert results[0]["losses"] == pytest.approx(train("adamw", "single")["losses"], rel=0.05)
    weight = torch.load(saved)["model"]["first.weight"]
    assert weight.dtype == torch.float32 and not torch.equal(weight, weight.bfloat16().float())


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_checkpoint_goes_from_ddp_to_deepspeed_to_one_process(pair, tmp_path, stage, kind):
    ddp, zero, whole = (str(tmp_path / name) for name in ("ddp.pt", "zero.pt", "whole.pt"))
    train(kind, "single", save=whole)
    train(kind, "single", first=STEPS, load=whole, save=whole)
    expected = train(kind, "single", first=2 * STEPS, load=whole)
    pair.run(train, kind, "ddp", 0, 1, 0.0, "off", "", 0, "", ddp)
    pair.run(train, kind, "deepspeed", stage, 1, 0.0, "off", "", STEPS, ddp, zero)
    assert_same_training([train(kind, "single", first=2 * STEPS, load=zero)], expected)


def load_and_save(kind, stage, load, save):
    with options("deepspeed", stage):
        model = rd.strategies.select.wrap_model(new_model())
        optimizer = rd.strategies.wrap_optimizer(model, new_optimizer(model, kind))
    rd.load_checkpoint(model, optimizer, load)
    rd.save_checkpoint(model, optimizer, 1, save)
    with torch.no_grad():  # the loaded weights are those of the forward pass, too
        return model(batch(0)[0])


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_loaded_checkpoint_is_saved_bit_for_bit(pair, tmp_path, stage):
    ddp, zero = tmp_path / "ddp.pt", tmp_path / "zero.pt"
    train("adamw", "single", save=str(ddp))
    outputs = pair.run(load_and_save, "adamw", stage, str(ddp), str(zero))
    one, other = torch.load(zero), torch.load(ddp)
    assert one["model"].keys() == other["model"].keys()
    assert all(torch.equal(one["model"][name], value) for name, value in other["model"].items())
    assert_same_state(one["optimizer"], other["optimizer"])
    model = new_model()
    model.load_state_dict(other["model"])
    torch.testing.assert_close(outputs[0], model(batch(0)[0]).detach())


def refusals(saved):
    """Return the errors of wrong uses."""
    with options("deepspeed", 3):
        model = rd.strategies.select.wrap_model(new_model())
        assert rd.strategies.select.wrap_model(model) is model and model.num_outputs == 3
        errors = [error_of(lambda: model(batch(0)[0]))]
        optimizer = rd.strategies.wrap_optimizer(model, new_optimizer(model, "adamw"), clip_grad=2.0)
        errors.append(error_of(lambda: rd.strategies.wrap_optimizer(model, new_optimizer(new_model(), "sgd"))))
        errors.append(error_of(lambda: rd.strategies.clip_grad_norm(model, 1.0)))
        errors.append(error_of(lambda: rd.load_checkpoint(model, optimizer, saved)))
        model.frozen.requires_grad_(True)
        errors.append(error_of(lambda: model(batch(0)[0])))
        errors.append(error_of(lambda: rd.strategies.select.wrap_model(torch.compile(new_model()))))
    return errors


def error_of(action):
    with contextlib.suppress(AssertionError), pytest.raises(Exception) as caught:
        action()
    return str(caught.value)


def test_wrong_uses_are_refused(pair, tmp_path):
    train("sgd", "single", save=str(tmp_path / "sgd.pt"))
    for errors in pair.run(refusals, str(tmp_path / "sgd.pt")):
        for error, words in zip(
            errors,
            (
                "write optimizer = wrap_optimizer",
                "has its own already",
                "give wrap_optimizer clip_grad=1.0",
                "it has no",
                "frozen or thawed after wrap_model",
                "leave --compile out",
            ),
        ):
            assert words in error, errors


def sharded_refused(path):
    with options("deepspeed", 2):
        model = rd.strategies.select.wrap_model(new_model())
        at_save = error_of(lambda: rd.save_checkpoint(model, None, 1, path, sharded=True))
        os.environ["RETROFIT_CKPT"] = "sharded"
        try:
            return at_save, error_of(lambda: rd.strategies.select.wrap_model(new_model()))
        finally:
            del os.environ["RETROFIT_CKPT"]


def test_a_sharded_checkpoint_is_refused(pair, tmp_path):
    for errors in pair.run(sharded_refused, str(tmp_path / "sharded")):
        for error in errors:
            assert (
                error.startswith("--ckpt sharded does not know DeepSpeed's flat shards") and "use --ckpt full" in error
            )
    assert not list(tmp_path.iterdir())


def average(stage):
    """Return an EMA made and updated as train.py does, and evaluations of uneven numbers of batches."""
    with options("deepspeed", stage):
        model = rd.strategies.select.wrap_model(new_model())
        ema = torch.optim.swa_utils.AveragedModel(rd.unwrap_model(model))
        optimizer = rd.strategies.wrap_optimizer(model, new_optimizer(model, "sgd"))
    rd.strategies.backward(model, model(batch(0)[0]).sum())
    optimizer.step()
    with rd.strategies.whole_parameters(model):
        ema.update_parameters(rd.unwrap_model(model))
    inputs = DataLoader(torch.cat([batch(step)[0] for step in range(3)]), batch_size=BATCH)
    with torch.no_grad():
        outputs = [(x, model(x)) for x in rd.strategies.EvaluationBatches(inputs, model.eval())]
    assert len(outputs) == 2 - rd.get_rank()
    x, output = outputs[0]
    return ema.module.state_dict(), model.state_dict(), output, ema.module(x).detach()


@pytest.mark.parametrize("stage", [1, 3])
def test_an_average_and_an_uneven_evaluation(pair, stage):
    for ema, weights, output, output_of_ema in pair.run(average, stage):
        assert ema.keys() == weights.keys()
        assert all(torch.equal(ema[name], value) for name, value in weights.items())
        torch.testing.assert_close(output, output_of_ema)


def train_reference_project(arguments):
    with options("deepspeed", 3):
        return run_training(arguments, 24)


def test_the_reference_project_trains_as_one_process(pair, ranks):
    arguments = ["--model_type", "swin_mlp", "--batch", "global", "--batchsize", "8", "--clip_grad", "1"]
    expected = ranks(1).run(run_training, arguments, 24)[0]
    for accum in ("1", "2"):
        for result in pair.run(train_reference_project, [*arguments, "--accum_steps", accum]):
            assert result["losses"] == pytest.approx(expected["losses"], rel=1e-5)
            assert result["lr"] == expected["lr"]
            for name, value in expected["weights"].items():
                torch.testing.assert_close(result["weights"][name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("forked_python")
def test_train_py_under_torchrun_leaves_a_checkpoint_for_one_process(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "train.py"]
    command += ["--config", "configs/ddp_example.yaml"]
    command += ["--model_type", "swin_mlp", "--layers", "18", "--crop_size", "32", "--workers", "0", "--epochs", "1"]
    command += ["--batchsize", "80", "--ema_decay", "0.5", "--strategy", "deepspeed", "--zero_stage", "3"]
    ended = subprocess.run(
        [*command, "--logdir", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    content = rd.checkpoint.read_checkpoint(next(tmp_path.glob("*/checkpoint_*.pt")))
    model = build_model("swin_mlp", 18, 5)
    model.load_state_dict(content["model"])
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    optimizer.load_state_dict(content["optimizer"])
    shapes = [entry["momentum_buffer"].shape for entry in content["optimizer"]["state"].values()]
    assert shapes == [parameter.shape for parameter in model.parameters()]
    assert content["world_size"] == 2 and content["ema"].keys() == content["model"].keys()
