"""Every strategy at every number of ranks is the training of one process with the same global batch."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_pool import RankPool
from strategy_training import new_model, train, with_options

import retrofit.distributed as rd

NUM_STEPS = 6
# bf16 keeps 8 bits, so each product is rounded by up to 2^-9 of it (0.2 %); six steps carry that on. In fp32 a sum in
# another order differs by 1e-7 or so.
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2}
RUNS = {
    "single": (1, {"strategy": "single"}),
    "dp": (1, {"strategy": "dp"}),
    **{f"ddp x{n}": (n, {"strategy": "ddp"}) for n in (1, 2, 3)},
    **{f"fsdp x{n}": (n, {"strategy": "fsdp"}) for n in (1, 2, 3)},
    "fsdp by layer x2": (2, {"strategy": "fsdp", "wrap_layers": "Block"}),
    "fsdp SHARD_GRAD_OP x2": (2, {"strategy": "fsdp", "sharding": "SHARD_GRAD_OP"}),
    "fsdp SHARD_GRAD_OP x3": (3, {"strategy": "fsdp", "sharding": "SHARD_GRAD_OP"}),
    "fsdp HYBRID_SHARD 2x2": (4, {"strategy": "fsdp", "sharding": "HYBRID_SHARD", "shard_size": 2}),
    "fsdp NO_SHARD x2": (2, {"strategy": "fsdp", "sharding": "NO_SHARD"}),
    "ddp recomputing x2": (2, {"strategy": "ddp", "grad_ckpt": True, "wrap_layers": "Block"}),
    "fsdp recomputing x2": (2, {"strategy": "fsdp", "grad_ckpt": True, "wrap_layers": "Block"}),
    "ddp static graph x2": (2, {"strategy": "ddp", "static_graph": True, "gradient_as_bucket_view": True}),
    **{
        f"zero-{stage} x{n}": (n, {"strategy": "deepspeed", "zero_stage": stage})
        for n in (1, 2, 3)
        for stage in (1, 2, 3)
    },
}

HAS_FSDP2 = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 6)
needs_fsdp2 = pytest.mark.skipif(not HAS_FSDP2, reason=f"fully_shard needs torch 2.6, this is {torch.__version__}")
needs_deepspeed = pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="deepspeed is not installed (the extra [deepspeed], from Python 3.10 on)"
)


def marked(name: str) -> Any:
    """Return a run as a test's parameter, skipped where its strategy needs a newer torch or deepspeed."""
    options = RUNS[name][1]
    if options["strategy"] == "deepspeed":
        return pytest.param(name, marks=needs_deepspeed)
    is_sharded = options["strategy"] == "fsdp" and options.get("sharding") != "NO_SHARD"
    return pytest.param(name, marks=needs_fsdp2) if is_sharded else name


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, Any]]:
    """The losses and weights of one process without a group, in each precision."""
    return {precision: train(NUM_STEPS, precision) for precision in TOLERANCE}


# bf16 with accumulation is a further case: each has been shown without the other.
@pytest.mark.parametrize(
    ("precision", "accum_steps"),
    [("fp32", 1), ("fp32", 2), ("bf16", 1), pytest.param("bf16", 2, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("run", [marked(name) for name in RUNS])
def test_the_losses_equal_those_of_one_process(
    ranks: Any, zero_ranks: Any, alone: dict[str, dict[str, Any]], run: str, precision: str, accum_steps: int
) -> None:
    world_size, options = RUNS[run]
    pools = zero_ranks if options["strategy"] == "deepspeed" else ranks
    if options.get("static_graph") and accum_steps == 2:
        options = {**options, "static_graph": False}  # a backward without communication is another graph
    results = pools(world_size).run(run_training, NUM_STEPS, precision, accum_steps, options)
    expected, tolerance = alone[precision], TOLERANCE[precision]
    for result in results:
        assert result["losses"] == pytest.approx(expected["losses"], rel=tolerance)
        assert result["weights"].keys() == expected["weights"].keys()
    if precision == "fp32":
        for name, weight in expected["weights"].items():
            torch.testing.assert_close(results[0]["weights"][name], weight, rtol=0, atol=1e-5, msg=name)


def run_training(steps: int, precision: str, accum_steps: int, options: dict[str, Any]) -> dict[str, Any]:
    return train(steps, precision, accum_steps, **options)


def continued(load: str, save: str, options: dict[str, Any]) -> dict[str, Any]:
    return train(2, load=load, save=save, **options)


@needs_fsdp2
@pytest.mark.parametrize(
    "stations",
    [
        [(2, {"strategy": "ddp"}), (2, {"strategy": "fsdp"}), (1, {"strategy": "single"})],
        [(1, {"strategy": "single"}), (3, {"strategy": "fsdp", "wrap_layers": "Block"}), (2, {"strategy": "ddp"})],
        [(4, {"strategy": "fsdp", "sharding": "HYBRID_SHARD", "shard_size": 2}), (2, {"strategy": "fsdp"})],
    ],
    ids=["ddp x2 - fsdp x2 - single", "single - fsdp x3 - ddp x2", "hybrid x4 - fsdp x2"],
)
def test_a_checkpoint_continues_under_another_strategy(
    ranks: Any, alone: dict[str, dict[str, Any]], stations: list[tuple[int, dict[str, Any]]], tmp_path: Path
) -> None:
    losses, path = [], ""
    for number, (world_size, options) in enumerate(stations):
        before, path = path, str(tmp_path / f"{number}.pt")
        losses += ranks(world_size).run(continued, before, path, options)[0]["losses"]
    assert losses == pytest.approx(alone["fp32"]["losses"][: len(losses)], rel=1e-5)
    content = torch.load(path, weights_only=True)
    plain = new_model().state_dict()
    assert {name: value.shape for name, value in content["model"].items()} == {
        name: value.shape for name, value in plain.items()
    }
    assert all(type(value) is torch.Tensor and value.device.type == "cpu" for value in content["model"].values())
    assert sorted(os.listdir(tmp_path)) == [f"{number}.pt" for number in range(len(stations))]


def save_on_rank_0_alone(path: str) -> str:
    with with_options(strategy="fsdp", min_num_params=1000.0, dist_timeout=1.0):
        model = rd.strategies.select.wrap_model(new_model())
        if not rd.is_main_process():
            return ""
        with pytest.raises(RuntimeError) as caught:
            rd.save_checkpoint(model, None, 1, path)
    return str(caught.value)


@needs_fsdp2
def test_a_save_by_rank_0_alone_ends_and_names_the_others(tmp_path: Path) -> None:
    pool = RankPool(2)  # its group is of no use afterwards
    try:
        message, _ = pool.run(save_on_rank_0_alone, str(tmp_path / "model.pt"))
    finally:
        pool.stop()
    assert message.startswith(
        "save_checkpoint was called by rank 0, but not by rank 1 within 1 s; every rank must call"
    )
    assert not list(tmp_path.iterdir())


def evaluated(num_samples: int) -> list[list[float]]:
    """Evaluate a sharded model on this rank's batches, of which a rank may have one more than another."""
    with with_options(strategy="fsdp", min_num_params=1000.0):
        model = rd.strategies.select.wrap_model(new_model())
    words = torch.arange(num_samples * 3).reshape(num_samples, 3) % 7
    found = []
    model.eval()
    with torch.no_grad():
        for batch in rd.strategies.EvaluationBatches(torch.utils.data.DataLoader(words, batch_size=2), model):
            found.append(model(batch).sum((1, 2)).tolist())
    return found


@needs_fsdp2
@pytest.mark.parametrize("num_samples", [12, 9, 5, 1])
def test_an_uneven_evaluation_of_a_sharded_model_ends_and_counts_each_sample_once(ranks: Any, num_samples: int) -> None:
    found = ranks(2).run(evaluated, num_samples, timeout_s=60)
    model = new_model().eval()
    words = torch.arange(num_samples * 3).reshape(num_samples, 3) % 7
    expected = [part.tolist() for part in model(words).sum((1, 2)).split(2)]
    for rank, batches in enumerate(found):
        assert len(batches) == len(expected[rank::2])
        for values, of_one_process in zip(batches, expected[rank::2]):
            assert values == pytest.approx(of_one_process, rel=1e-5)


def refused(options: dict[str, Any]) -> str:
    with with_options(**options), pytest.raises(ValueError) as caught:
        rd.strategies.select.wrap_model(new_model())
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "single"}, "--strategy single is for one process, and the launcher started 2"),
        ({"strategy": "dp"}, "--strategy dp is for one process, and the launcher started 2"),
        pytest.param(
            {"strategy": "fsdp", "wrap_layers": "BertLayer"},
            "--wrap_layers: no layer of class BertLayer; the model has Block",
            marks=needs_fsdp2,
        ),
        pytest.param(
            {"strategy": "fsdp", "sharding": "HYBRID_SHARD", "shard_size": 3},
            "--shard_size 3 does not divide the 2 ranks",
            marks=needs_fsdp2,
        ),
        ({"strategy": "ddp", "comm_hook": "int8"}, "unknown comm_hook 'int8'; use one of: none, fp16, bf16, powersgd"),
        ({"strategy": "fsdp", "sharding": "SOME"}, "unknown sharding 'SOME'; use one of: FULL_SHARD, SHARD_GRAD_OP"),
    ],
)
def test_an_impossible_strategy_is_refused_by_every_rank(ranks: Any, options: dict[str, Any], message: str) -> None:
    assert all(text.startswith(message) for text in ranks(2).run(refused, options))


@pytest.mark.skipif(HAS_FSDP2, reason=f"torch {torch.__version__} has fully_shard")
def test_before_torch_2_6_fsdp_is_an_error(ranks: Any) -> None:
    (message,) = set(ranks(1).run(without_fsdp2))
    assert message.startswith(f"strategy fsdp needs torch 2.6 or newer (fully_shard), this is {torch.__version__}")


def without_fsdp2() -> str:
    with with_options(strategy="fsdp"), pytest.raises(RuntimeError) as caught:
        rd.strategies.select.wrap_model(new_model())
    return str(caught.value)


def test_outside_a_group_a_strategy_returns_the_model_itself() -> None:
    model = new_model()
    for strategy in ("auto", "single", "ddp", "fsdp"):
        with with_options(strategy=strategy):
            assert rd.strategies.select.wrap_model(model) is model
            assert rd.distribute_model(model, strategy, sync_batchnorm=False, find_unused_parameters=True) is model


def transparent() -> None:
    with with_options(strategy="fsdp", min_num_params=1000.0):
        module = new_model()
        names = [name for name, _ in module.named_parameters()]
        model = rd.distribute_model(module, "fsdp", find_unused_parameters=False)  # which is DDP's own
        assert model is module and rd.strategies.is_sharded(model) and rd.strategies.select.wrap_model(model) is model
    assert model.num_classes == 7 and len(model.blocks) == 2
    assert [name for name, _ in model.named_parameters()] == names
    assert list(model.state_dict()) == list(new_model().state_dict())
    whole, own = sum(p.numel() for p in new_model().parameters()), sum(p.to_local().numel() for p in model.parameters())
    assert own < 0.6 * whole, "the parameters are not sharded"


@needs_fsdp2
def test_a_sharded_model_looks_like_the_model(ranks: Any) -> None:
    ranks(2).run(transparent)


def rank_0s_weights() -> dict[str, torch.Tensor]:
    model = new_model()
    if rd.get_rank() == 1:
        torch.nn.init.zeros_(model.norm.weight)
    with with_options(strategy="fsdp"):
        return rd.checkpoint.gather_state(rd.strategies.select.wrap_model(model).state_dict())


@needs_fsdp2
def test_all_ranks_start_from_the_weights_of_rank_0(ranks: Any) -> None:
    for state in ranks(2).run(rank_0s_weights):
        assert all(torch.equal(state[name], value) for name, value in new_model().state_dict().items())
