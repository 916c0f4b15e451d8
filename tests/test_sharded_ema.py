"""The moving average of a sharded model: the average of one process, sharded alike, saved and resumed anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from strategy_training import batch_of, new_model, with_options
from torch.utils.data import DataLoader
from training import SMALL, SameAugmentation

import retrofit.distributed as rd
import train
import utils

needs_fsdp2 = pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6),
    reason=f"fully_shard needs torch 2.6, this is {torch.__version__}",
)
DDP, FSDP = ({"strategy": name, "wrap_layers": "SwinTransformerBlock"} for name in ("ddp", "fsdp"))
GRAD_OP = {**FSDP, "sharding": "SHARD_GRAD_OP"}
OPTIONS = ["--model_type", "swin_mlp", "--batch", "global", "--batchsize", "8", "--ema_decay", "0.5"]


def averaged(logdir: str, options: dict[str, Any], resume: str = "") -> dict[str, Any]:
    """Train and validate the reference project with a moving average; a task."""
    build_dataset = utils.build_dataset

    def small_dataset(name: str, root: str, split: str, *rest: Any) -> Any:
        return SameAugmentation(build_dataset(name, root, split, *rest), 24 if split == "train" else 5)

    arguments = [*SMALL, *OPTIONS, "--logdir", logdir, "--epochs", "2", "--lr", "0.05", "--warmup", "0"]
    arguments += ["--resume", resume] if resume else []
    with with_options(**options), mock.patch.object(utils, "build_dataset", small_dataset):
        args = train.get_arguments(arguments)
        vars(args).update(options)
        rd.options.set_options(args)
        rd.random_state.seed_everything(args.seed)
        confusion, results = [], []
        evaluate = train.evaluate
        with (
            mock.patch.object(train, "evaluate", lambda *a: confusion.append(evaluate(*a)) or confusion[-1]),
            mock.patch.object(train, "save_state", lambda *a: results.append(a[1:3]) or utils.save_state(*a)),
        ):
            assert train.train(args, train.find_checkpoint(args)) == 0
    state, folder = results[-1]
    states = rd.checkpoint.gather_state(
        {"ema": state.ema.state_dict(), "model": rd.unwrap_model(state.model).state_dict()}
    )
    matrices = [found.matrix for found, *_ in confusion]
    return {
        **states,
        "matrices": matrices,
        "paths": [str(path) for path in rd.checkpoint.checkpoints_in(folder)],
    }


def assert_close(result: dict[str, Any], expected: dict[str, Any]) -> None:
    for part in ("ema", "model"):
        assert list(result[part]) == list(expected[part])
        for name, value in expected[part].items():
            torch.testing.assert_close(result[part][name], value, rtol=1e-4, atol=1e-5, msg=f"{part} {name}")
    changed = [not torch.equal(value, result["model"][name]) for name, value in result["ema"].items()]
    assert any(changed), "the average is the weights"


@pytest.fixture(scope="module")
def alone(ranks: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The training of one process."""
    return ranks(1).run(averaged, str(tmp_path_factory.mktemp("alone")), DDP)[0]


@needs_fsdp2
@pytest.mark.parametrize(
    "first, second",
    [
        ((2, {**FSDP, "ckpt": "sharded"}), (2, {**DDP, "ckpt": "full"})),
        ((2, {**GRAD_OP, "ckpt": "full"}), (2, {**GRAD_OP, "ckpt": "sharded"})),
        ((2, {**DDP, "ckpt": "sharded"}), (2, {**FSDP, "ckpt": "sharded", "async_save": True})),
    ],
    ids=["fsdp-ddp", "grad_op-grad_op", "ddp-fsdp"],
)
def test_a_sharded_average_equals_that_of_one_process_and_continues_under_another_strategy(
    ranks: Any, tmp_path: Path, alone: dict[str, Any], first: Any, second: Any
) -> None:
    begun = ranks(first[0]).run(averaged, str(tmp_path / "1"), first[1])
    results = ranks(second[0]).run(averaged, str(tmp_path / "2"), second[1], begun[0]["paths"][1])  # after one epoch
    for result in (*begun, *results):
        assert_close(result, alone)
    for matrix, expected in zip(
        begun[0]["matrices"] + results[0]["matrices"], alone["matrices"] + alone["matrices"][1:]
    ):
        assert matrix.sum() == expected.sum() and (matrix - expected).abs().sum() <= 0.01 * expected.sum()
    saved = rd.checkpoint.read_checkpoint(results[0]["paths"][0])
    assert list(saved["ema"]) == list(saved["model"]) == list(alone["ema"])
    assert all(torch.equal(saved["ema"][name], value) for name, value in results[0]["ema"].items())


def sharded_after_an_evaluation() -> bool:
    with with_options(strategy="fsdp", sharding="SHARD_GRAD_OP", min_num_params=1000.0):
        model = rd.strategies.select.wrap_model(new_model())
    with torch.no_grad():
        for words in rd.strategies.EvaluationBatches(DataLoader(batch_of(0)[0], batch_size=4), model.eval()):
            model(words)
    return all(hasattr(parameter, "full_tensor") for parameter in model.parameters())


@needs_fsdp2
def test_an_evaluation_leaves_no_parameter_gathered(ranks: Any) -> None:
    """Or an average without a save in between would be updated in the gathered copy, and lost with it."""
    assert ranks(2).run(sharded_after_an_evaluation) == [True, True]
