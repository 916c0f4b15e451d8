"""The model of `retrofit plan`: links, buckets, overlap, memory, bounds and the choice, with numbers made by hand."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "docs"))

import make_scale

from retrofit.plan import history
from retrofit.plan.link.known import KNOWN, link_of, slower
from retrofit.plan.link.link import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    Copies,
    Link,
    Measured,
    Overlap,
    fitted,
    read_link,
)
from retrofit.plan.plan import Plan
from retrofit.plan.predict.bounds import bounds_of
from retrofit.plan.predict.ddp import added, buckets
from retrofit.plan.predict.memory import largest_batch, memory_of
from retrofit.plan.predict.overlap import sharded_passes, with_calls
from retrofit.plan.predict.prediction import STRATEGIES, loading, predictions
from retrofit.plan.predict.sharded import fsdp_added
from retrofit.plan.profile.profile import Profile
from retrofit.why.analysis.steps import Step

MIB = 2**20
NO_SLOWDOWN = Overlap()


def profile_of(**changes: object) -> Profile:
    """Return steps of 100 ms: 10 of data, 20 forward, 50 backward, 15 of the optimizer; four gradients of 2 MiB."""
    parts = {"data": 0.010, "forward": 0.020, "backward": 0.050, "optimizer": 0.015}
    steps = [Step(float(number), number + 0.1, dict(parts), samples=8.0) for number in range(10)]
    facts = {
        "gradients": [2 * MIB] * 4, "elements": [MIB // 2] * 4, "frozen_bytes": 0, "buffer_bytes": 0,
        "batchnorm_channels": [], "optimizers": ["AdamW"], "optimizer_bytes": 16 * MIB, "activation_bytes": 32 * MIB,
        "layers": [[0, 1], [2, 3]], "batches_per_epoch": 100,
    }  # fmt: skip
    ready = [(0.010, 2 * MIB), (0.020, 2 * MIB), (0.030, 2 * MIB), (0.050, 2 * MIB)]
    return replace(Profile([steps], ready, 1, facts, None), **changes)  # type: ignore[arg-type]


def test_a_ring_and_a_tree_take_what_their_formulas_say() -> None:
    ring = Link("ring", alpha=1e-3, beta=1e-6)
    assert ring.seconds(ALL_REDUCE, 1000, 4) == pytest.approx(6 * 1e-3 + 2 * 3 / 4 * 1000 * 1e-6)
    assert ring.seconds(ALL_GATHER, 1000, 4) == pytest.approx(3 * 1e-3 + 3 / 4 * 1000 * 1e-6)
    assert ring.seconds(BROADCAST, 1000, 4) == pytest.approx(2 * 1e-3 + 1000 * 1e-6)
    tree = replace(ring, has_trees=True)
    assert tree.seconds(ALL_REDUCE, 1, 64) == pytest.approx(12 * 1e-3, rel=1e-3)  # 126 hops of a ring
    assert tree.seconds(ALL_REDUCE, 1e9, 64) == pytest.approx(ring.seconds(ALL_REDUCE, 1e9, 64))
    assert ring.seconds(ALL_REDUCE, 1000, 1) == 0


def test_measured_times_are_read_between_sizes_and_scaled_to_more_ranks() -> None:
    table = [(1000.0, 0.001), (3000.0, 0.003)]
    link = Link("measured", 0, 0, measured_ranks=2, tables={ALL_REDUCE: table})
    assert link.seconds(ALL_REDUCE, 2000, 2) == pytest.approx(0.002)
    assert link.seconds(ALL_REDUCE, 10, 2) == pytest.approx(0.001)
    assert link.seconds(ALL_REDUCE, 6000, 2) == pytest.approx(0.006)
    # Of 2 ms one is the latency of 2 hops, 6 on four ranks; the other one is for a share of 1, then of 1.5.
    assert link.seconds(ALL_REDUCE, 2000, 4) == pytest.approx(0.001 * 3 + 0.001 * 1.5)
    assert fitted([(0.0, 0.002), (1e6, 1.002)], 2) == pytest.approx((0.001, 1e-6))


def test_a_link_is_a_name_two_numbers_or_a_file(tmp_path: Path) -> None:
    assert link_of("25gbe").beta == 1 / KNOWN["25gbe"][1]
    assert (link_of("1e-5,2e-9").alpha, link_of("1e-5,2e-9").beta) == (1e-5, 2e-9)
    kept = Link(
        "kept",
        1.0,
        2.0,
        True,
        copies=Copies(1e-9),
        overlap=Overlap(0.5, 0.6),
        measured=Measured({"fsdp": [(1.0, 2.0)]}),
    )
    kept.write(tmp_path / "link.json")
    found = read_link(tmp_path / "link.json")
    assert (found.copies, found.overlap, found.measured.of("fsdp", 1.0)) == (kept.copies, kept.overlap, 2.0)
    (tmp_path / "other.json").write_text('{"name": "x"}')
    with pytest.raises(ValueError, match=r"is not a file of `python -m retrofit\.plan\.link`"):
        link_of(str(tmp_path / "other.json"))
    for text in ("infiniband", "1,2,3", "-1,2"):
        with pytest.raises(ValueError, match="--link"):
            link_of(text)
    assert slower(link_of("nvlink"), link_of("25gbe")).name == "25gbe"


def test_calls_follow_each_other_and_what_is_left_of_them_is_added() -> None:
    assert with_calls(1.0, [], NO_SLOWDOWN) == 1.0
    assert with_calls(1.0, [(0.2, 0.3), (0.4, 0.3)], NO_SLOWDOWN) == pytest.approx(1.0)  # all hidden
    assert with_calls(1.0, [(0.5, 0.3), (1.0, 0.4)], NO_SLOWDOWN) == pytest.approx(1.4)  # the last one is not
    assert with_calls(1.0, [(0.1, 2.0), (1.0, 0.5)], NO_SLOWDOWN) == pytest.approx(2.6)  # the second one waits


def test_calls_and_computation_slow_each_other_down() -> None:
    half = Overlap(computation=0.5, call=0.5)
    # For 0.4 s both last: the call is done (0.2), and 0.2 of the work; 0.5 before and 0.3 after it are at full speed.
    assert with_calls(1.0, [(0.5, 0.2)], half) == pytest.approx(0.5 + 0.4 + 0.3)
    # After the work is done, in 1 s for the last half of it, half of the call is left, now at full speed.
    assert with_calls(1.0, [(0.5, 1.0)], half) == pytest.approx(0.5 + 1.0 + 0.5)


def test_a_layer_is_gathered_while_the_one_before_it_computes() -> None:
    passes = sharded_passes([1.0, 1.0], [2.0, 2.0], [0.5, 0.5], [0.25, 0.25], True, NO_SLOWDOWN)
    # 0.5 until the first layer is there; 2 and 4 of computation; the last reduce-scatter is exposed.
    assert passes == pytest.approx(0.5 + 2.0 + 4.0 + 0.25)
    slow = sharded_passes([0.1], [0.1], [3.0], [3.0], False, NO_SLOWDOWN)
    assert slow == pytest.approx(3.0 + 0.1 + 0.1 + 3.0)


def test_buckets_are_filled_as_ddp_does_it() -> None:
    """A first bucket of 1 MiB, then one of 25: the first gradient fills it."""
    assert list(buckets(profile_of())) == [(0.010, 2 * MIB), (0.050, 6 * MIB)]


def test_ddp_adds_its_last_bucket_and_its_copies() -> None:
    link = Link("link", alpha=0.0, beta=1e-9, copies=Copies(out_of_bucket=1e-9))
    assert added(profile_of(), link, 2) == pytest.approx(6 * MIB * 1e-9 + 8 * MIB * 1e-9)
    in_16_bits = added(profile_of(), replace(link, copies=Copies()), 2, in_16_bits=True)
    assert in_16_bits == pytest.approx(3 * MIB * 1e-9)


def test_fsdp_adds_what_was_measured_for_its_layers_and_divides_the_optimizer() -> None:
    measured = Measured({"fsdp": [(4.0 * MIB, 0.02)]}, for_tensor={"fsdp": 0.001}, tensors=5, update={"AdamW": 1e-4})
    link = Link("cpu", 1e-3, 1e-9, is_blocking=True, measured_ranks=2, measured=measured)
    of_two = 2 * (0.02 - 3 * 0.001) - 0.015 / 2 + 4 * 1e-4  # layers of two tensors
    assert fsdp_added(profile_of(), link, 2, is_gathered_again=True) == pytest.approx(of_two)
    more = fsdp_added(profile_of(), link, 4, is_gathered_again=True) - of_two + 0.015 / 4
    # Two layers, three calls each: 2 more hops, and a share of 3/4 in place of 1/2.
    assert more == pytest.approx(2 * 3 * (2e-3 + 4 * MIB * 1e-9 / 4))


def test_memory_is_that_of_the_paper() -> None:
    profile = profile_of()
    parts = {name: memory_of(profile, name, 4) for name in ("ddp", "fsdp", "fsdp grad-op", "zero2", "zero3")}
    of = {name: (m.parameters / MIB, m.gradients / MIB, m.optimizer / MIB) for name, m in parts.items()}
    assert of == {
        "ddp": (8, 8, 16), "fsdp": (2, 2, 4), "fsdp grad-op": (8, 2, 4), "zero2": (8, 2, 6), "zero3": (2, 2, 6),
    }  # fmt: skip
    assert parts["ddp"].buckets == 8 * MIB
    assert parts["ddp"].total == (8 + 8 + 16 + 8 + 32) * MIB
    # 40 MiB in any case, 4 MiB for each of 8 samples.
    assert largest_batch(parts["ddp"], 8, 100 * MIB) == 15
    assert largest_batch(parts["ddp"], 8, 10 * MIB) == 0


def test_the_bounds_are_the_formulas_of_the_guides() -> None:
    bound = bounds_of(profile_of(), Link("link", 1e-3, 1e-9), 4)
    assert bound.parallel == pytest.approx(0.8)
    assert bound.amdahl == pytest.approx(1 / (0.2 + 0.8 / 4))
    assert bound.seconds == pytest.approx(0.1 + 6e-3 + 1.5 * 8 * MIB * 1e-9, rel=1e-6)


def test_a_loader_waits_for_its_workers_and_for_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    profile = profile_of(batch_seconds=0.3)
    profile.facts["num_workers"] = 2
    assert loading(profile, 2, 1) == pytest.approx(0.15 - 0.09)  # a batch each 150 ms, 90 ms of other work
    assert loading(profile, 2, 8) == pytest.approx(8 * 0.3 / 4 - 0.09)  # the cores are the limit
    assert loading(profile, 0, 1) == pytest.approx(0.3)


def plan_of(link: Link, gpus: tuple[int, ...] = (2, 8), gpu_bytes: float | None = None) -> Plan:
    profile = profile_of()
    found = itertools.chain.from_iterable(predictions(profile, link, number, 8, False) for number in gpus)
    bounds = [bounds_of(profile, link, number) for number in gpus]
    links = dict.fromkeys(gpus, link)
    return Plan(profile, dict.fromkeys(gpus, profile), links, list(found), bounds, gpu_bytes, 8, None, False, [], {})


def test_a_sharded_model_is_recommended_for_its_speed_only_where_that_was_measured() -> None:
    """FSDP divides the optimizer's 15 ms; what else it costs is not known of a link by its name."""
    choice = plan_of(Link("fast", 1e-6, 1e-12)).choice
    assert choice.prediction is not None
    assert (choice.prediction.strategy.name, choice.prediction.gpus) == ("ddp", 8)
    measured = Measured({"fsdp": [(1.0, 1e-4), (1e9, 1e-4)]}, for_tensor={"fsdp": 0.0, "fsdp grad-op": 0.0})
    link = Link("measured", 1e-6, 1e-12, is_blocking=True, measured_ranks=8, measured=measured)
    choice = plan_of(link).choice
    assert choice.prediction is not None
    assert choice.prediction.strategy.name == "fsdp"


def test_what_does_not_fit_is_not_recommended() -> None:
    fits = plan_of(Link("fast", 1e-6, 1e-12), gpu_bytes=60 * MIB)
    assert fits.choice.prediction is not None
    assert fits.choice.prediction.strategy.memory != "ddp"
    assert "DDP does not fit the memory" in fits.choice.reason
    nothing = plan_of(Link("fast", 1e-6, 1e-12), gpu_bytes=1 * MIB).choice
    assert (nothing.prediction, nothing.reason.split(":")[0]) == (None, "nothing fits")


def test_a_slow_link_recommends_one_process_or_names_what_is_faster() -> None:
    slow = plan_of(link_of("100mbit"))
    assert slow.choice.prediction is None
    assert slow.choice.reason.startswith("one process is faster")
    middle = plan_of(link_of("1gbe"), gpus=(2,))
    assert next(one.strategy.name for one in middle.alternatives) == "ddp, 4 batches"
    assert not any(one.strategy.is_same for one in middle.alternatives)


def test_all_of_a_step_is_in_its_prediction() -> None:
    one = next(iter(predictions(profile_of(), Link("link", 1e-3, 1e-9), 2, 8, False)))
    assert one.strategy is STRATEGIES[0]
    assert one.seconds == pytest.approx(0.1 + one.calls + one.late)
    assert one.low < one.seconds < one.high
    assert one.samples == 16


def test_the_history_corrects_predictions_of_the_same_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(history.VARIABLE, str(tmp_path / "kept" / "plan.json"))
    script = tmp_path / "train.py"
    assert history.factors(script, 2, "10gbe") == {}
    for measured in (1.0, 1.2, 1.4):
        history.remember(script, "ddp", 2, "10gbe", 1.0, measured)
    history.remember(tmp_path / "other.py", "ddp", 2, "10gbe", 1.0, 9.0)
    history.remember(script, "ddp", 4, "10gbe", 1.0, 9.0)
    history.remember(script, "ddp", 2, "nvlink", 1.0, 9.0)
    assert history.factors(script, 2, "10gbe") == {"ddp": 1.2}
    (tmp_path / "kept" / "plan.json").write_text("broken")
    assert history.factors(script, 2, "10gbe") == {}


def test_the_page_of_scale_is_current() -> None:
    assert make_scale.PAGE.read_text(encoding="utf-8") == make_scale.page(), "run python docs/make_scale.py"
