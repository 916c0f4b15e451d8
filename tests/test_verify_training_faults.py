"""Faults in how ranks compute: each must fail its own check with its own cause, and others only with the same one."""

from __future__ import annotations

import pytest
from verify_evidence import (
    NUM_ELEMENTS,
    STEPS_PER_EPOCH,
    at_the_time_of,
    change,
    collective_call,
    copy_of,
    cut,
    events_of,
    failures,
    insert,
    remove,
    run_of,
    sound_runs,
    spoil,
)

from retrofit.rules.catalog import CATALOG
from retrofit.verify.checks import run_checks
from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.checks.training.causes.clipped import changed_before_step
from retrofit.verify.checks.training.causes.diagnosis import other_buffers
from retrofit.verify.checks.training.causes.not_reached import not_reached
from retrofit.verify.checks.training.causes.weighted_mean import counts_by_losses
from retrofit.verify.checks.training.differences import may_be_rounding
from retrofit.verify.checks.training.rounding.growth import grown_steps
from retrofit.verify.trace.computation.steps.gradients_left import common_factor
from retrofit.verify.trace.events import (
    BackwardCall,
    BackwardGradients,
    BatchDrawn,
    CollectiveCall,
    GradientClip,
    InitialWeights,
    IterationEnd,
    IterationStart,
    LocalBatchNorm,
    OptimizerFound,
    OptimizerStep,
    ProcessExit,
    SimilarityProduct,
    ValidCount,
)
from retrofit.verify.verdict import PASS

CONTROLLED = ("many", "resumed")


def drift(run, ranks, first_step=0, hashes=True):
    """Let ranks have weights and gradients of their own from a step on."""
    for event in events_of(run, OptimizerStep, ranks):
        if event.number >= first_step:
            spoil(event, parameters=[[norm + 0.01, projection] for norm, projection in event.parameters])
            spoil(event, gradients=[[norm + 0.01, projection] for norm, projection in event.gradients])
            if hashes:
                other_hashes(event, "of rank 1")


def other_hashes(event, mark):
    """Let the parameters of a step be other ones."""
    hashes = [f"{one} {mark}" for one in event.parameter_hashes]
    spoil(event, parameter_hash=f"{event.parameter_hash} {mark}", parameter_hashes=hashes)


def wrapper_bypassed(runs):
    for name in CONTROLLED:
        remove(runs[name], CollectiveCall, in_backward=True)
    for rank in (0, 1):
        drift(runs["many"], [rank], hashes=rank == 1)
        change(runs["many"], OptimizerStep, [rank], {"number": 1}, losses=lambda event: [event.losses[0] * 1.1])
    del runs["resumed"], runs["reload"], runs["reload_original"]


def head_bypassed(runs):
    """Only the weight is averaged, the bias is not part of the wrapped model."""
    for name in CONTROLLED:
        change(runs[name], CollectiveCall, having={"in_backward": True}, numel=9)
    for event in events_of(runs["many"], OptimizerStep, [1]):
        weight, bias = event.parameter_hashes
        spoil(event, parameter_hash=f"{event.parameter_hash} of rank 1", parameter_hashes=[weight, f"{bias} of rank 1"])


def sync_in_some_steps(runs):
    """Accumulation that is one step off: the second step of each epoch is not averaged."""
    remove(runs["many"], CollectiveCall, in_backward=True, step=1)
    remove(runs["many"], CollectiveCall, in_backward=True, step=3)
    drift(runs["many"], [1], first_step=1)


def accumulate(run, sync_first=False, sync_always=False):
    """Split each step's batch in two micro batches with a backward each."""
    for trace in run.ranks:
        events = []
        for event in trace.events:
            is_reduction = isinstance(event, CollectiveCall) and event.in_backward
            if isinstance(event, BatchDrawn) and _trains(trace, event.iteration):
                half = len(event.samples) // 2
                events.append(copy_of(event, number=2 * event.number, samples=event.samples[:half]))
                rest = copy_of(event, number=2 * event.number + 1, samples=event.samples[half:])
            elif isinstance(event, BackwardCall):
                half_loss = copy_of(event, loss=event.loss / 2)
                events.append(half_loss)
                if (sync_first or sync_always) and run.world_size > 1:
                    events.append(at_the_time_of(event, collective_call("allreduce_", NUM_ELEMENTS)))
                events += [rest, copy_of(half_loss)]
            elif not (is_reduction and sync_first):
                events.append(event)
        trace.events = events


def _trains(trace, iteration):
    starts = [event for event in trace.events if isinstance(event, IterationStart)]
    return any(event.iteration == iteration and event.grad_enabled for event in starts)


def sync_in_first_backward(runs):
    for run in runs.values():
        accumulate(run, sync_first=True)
    drift(runs["many"], [1])


def sync_in_every_backward(runs):
    for run in runs.values():
        accumulate(run, sync_always=True)


def unused_parameters(runs):
    message = "Expected to have finished reduction in the prior iteration before starting a new one."
    for rank in (0, 1):
        cut(runs["many"], rank, BackwardCall, 1, 1, ("RuntimeError", message))


def unused_parameters_in_small_model(runs):
    """All gradients wait in one bucket for the missing one, so the first step is not averaged at all."""
    unused_parameters(runs)
    remove(runs["many"], CollectiveCall, in_backward=True)
    drift(runs["many"], [0, 1], hashes=False)
    drift(runs["many"], [1])


def buffers_in_place(runs):
    message = "one of the variables needed for gradient computation has been modified by an inplace operation"
    for rank in (0, 1):
        cut(runs["many"], rank, OptimizerStep, 0, 1, ("RuntimeError", message))


def batchnorm_local(runs):
    for name in CONTROLLED:
        insert(runs[name], (0, 1), BackwardCall, LocalBatchNorm(rows=4, channels=3))


def wrapper_attribute(runs):
    message = "'DistributedDataParallel' object has no attribute 'num_classes'"
    for rank in (0, 1):
        cut(runs["many"], rank, BackwardCall, 0, 1, ("AttributeError", message))


def module_of_bare_model(runs):
    for rank in (0, 1):
        cut(runs["many"], rank, ProcessExit, 0, 1, ("AttributeError", "'Net' object has no attribute 'module'"))


def scale(run, kind, factor):
    for event in events_of(run, OptimizerStep):
        if kind == "gradients":
            spoil(event, gradients=[[factor * x for x in pair] for pair in event.gradients])
        else:
            spoil(event, losses=[factor * loss for loss in event.losses])


def move_weights(run, first_step=0, by=0.01):
    for event in events_of(run, OptimizerStep):
        if event.number >= first_step:
            spoil(event, parameters=[[norm + by, projection] for norm, projection in event.parameters])
            other_hashes(event, "moved")


def loss_scaled(runs):
    for name in CONTROLLED:
        scale(runs[name], "losses", 2.0)
        scale(runs[name], "gradients", 2.0)
        move_weights(runs[name])
    change(runs["resumed"], InitialWeights, parameter_hash=weights_after_epoch(runs))
    for name in ("reload", "reload_original"):
        change(runs[name], InitialWeights, parameter_hash=weights_after_epoch(runs))


def weights_after_epoch(runs):
    return events_of(runs["many"], OptimizerStep, [0], number=STEPS_PER_EPOCH - 1)[0].parameter_hash


def keep_resume_out(runs):
    for name in ("resumed", "reload", "reload_original"):
        del runs[name]


def gradients_halved(runs):
    """Gradients are divided by the world size once more: the loss tells nothing."""
    keep_resume_out(runs)
    scale(runs["many"], "gradients", 0.5)
    move_weights(runs["many"])


def gradients_of_that_norm(runs):
    """Twice as long and in another direction: no factor explains that."""
    keep_resume_out(runs)
    change(
        runs["many"],
        OptimizerStep,
        gradients=lambda event: [[2 * norm, -projection] for norm, projection in event.gradients],
    )
    move_weights(runs["many"])


def averaged_per_rank(runs):
    """Ranks have 7 and 4 valid elements; the mean of their means is not the mean of all."""
    keep_resume_out(runs)
    change(runs["many"], ValidCount, [0], count=7)
    for event in events_of(runs["reference"], OptimizerStep):
        spoil(event, losses=[event.losses[0] + 0.01])
        spoil(event, gradients=[[norm * 1.01, projection] for norm, projection in event.gradients])
    move_weights(runs["many"])


def averaged_per_rank_uncounted(runs):
    """A loss of the user's own is masked: no operator counted its elements."""
    averaged_per_rank(runs)
    remove(runs["many"], ValidCount)


def pairs_in_batch(runs):
    keep_resume_out(runs)
    insert(runs["many"], (0, 1), BackwardCall, SimilarityProduct(shape=[4, 4], rows=4))
    for event in events_of(runs["reference"], OptimizerStep):
        spoil(event, losses=[event.losses[0] + 0.7])
        spoil(event, gradients=[[norm * 1.3, projection] for norm, projection in event.gradients])
    move_weights(runs["many"])


def pairs_in_batch_unseen(runs):
    """The comparison is no matrix product; the loss of one process is larger than that of any rank."""
    pairs_in_batch(runs)
    remove(runs["many"], SimilarityProduct)


def gathered_without_gradient(runs):
    """Each rank has the loss of all pairs, and the gradient of its own rows: half of the whole."""
    gradients_halved(runs)
    insert(runs["many"], (0, 1), BackwardCall, SimilarityProduct(shape=[4, 8], rows=4))


def own_rows_with_all_gathered(runs):
    """Each rank compares its rows with all: no square matrix there, and the gradient is not half of the whole."""
    keep_resume_out(runs)
    insert(runs["reference"], (0,), BackwardCall, SimilarityProduct(shape=[8, 8], rows=8))
    for event in events_of(runs["reference"], OptimizerStep):
        spoil(event, gradients=[[norm * 1.3, projection] for norm, projection in event.gradients])
    move_weights(runs["many"])


def weights_changed_on_one_rank(runs):
    """Gradients are averaged as they must be; rank 1 clips its weights afterwards."""
    for run in runs.values():
        accumulate(run)
    drift_weights_only(runs["many"], [1], 0)


def set_lr(run, rate):
    for event in events_of(run, OptimizerStep):
        spoil(event, lr=[rate(event.number + (STEPS_PER_EPOCH if run.name == "resumed" else 0))])


def lr_scaled(runs):
    for name in CONTROLLED:
        set_lr(runs[name], lambda n: 0.2 if n < STEPS_PER_EPOCH else 0.1)


def lr_scaled_and_effective(runs):
    lr_scaled(runs)
    keep_resume_out(runs)
    move_weights(runs["many"])
    for event in events_of(runs["many"], OptimizerStep):
        spoil(event, losses=[loss + 0.01 * event.number for loss in event.losses])


def lr_scaled_and_schedule_too_short(runs):
    for name in CONTROLLED:
        set_lr(runs[name], lambda n: 0.2 if n < 1 else 0.05)


def schedule_too_short(runs):
    for name in CONTROLLED:
        set_lr(runs[name], lambda n: 0.1 if n < 1 else 0.05)


def lr_decided_by_each_rank(runs):
    """A plateau scheduler that watches a rank's own loss."""
    keep_resume_out(runs)
    change(runs["many"], OptimizerStep, [1], {"number": 2}, lr=[0.005])
    drift_weights_only(runs["many"], [1], 2)


def drift_weights_only(run, ranks, first_step):
    for event in events_of(run, OptimizerStep, ranks):
        if event.number >= first_step:
            other_hashes(event, "of rank 1")


def initial_weights_differ(runs):
    """No wrapper, so nobody sends rank 0's weights around either."""
    remove(runs["many"], CollectiveCall, in_backward=True)
    change(runs["many"], InitialWeights, [1], parameter_hash="other", parameter_hashes=["other", "too"])
    drift_weights_only(runs["many"], [1], 0)


def weights_drawn_after_wrapping(runs):
    change(runs["many"], InitialWeights, [1], parameter_hash="other", parameter_hashes=["other", "too"])
    drift_weights_only(runs["many"], [1], 0)


def weights_drawn_by_rank(runs):
    """Gradients are averaged by hand, and nothing sends rank 0's weights around."""
    change(runs["many"], CollectiveCall, in_backward=False)
    weights_drawn_after_wrapping(runs)


def a_rank_makes_no_step(runs):
    remove(runs["many"], OptimizerStep, [1])
    runs.pop("reference")


def initial_weights_of_another_seed(runs):
    keep_resume_out(runs)
    change(runs["many"], InitialWeights, parameter_hash="other", parameters=[[1.5, 0.5], [0.3, 0.0]])
    move_weights(runs["many"])


def batches_spoilt(runs):
    """The loop changes what the dataset holds: losses drift apart, and the data is why."""
    batches_spoilt_only(runs)
    keep_resume_out(runs)
    for event in events_of(runs["many"], OptimizerStep):
        spoil(event, losses=[loss + 0.01 * event.number for loss in event.losses])


OF_STEP_0 = ("gradients", "parameters")


def batches_spoilt_and_resumed(runs):
    """A resumed process reads the data anew, without the changes."""
    batches_spoilt_only(runs)
    change(runs["resumed"], OptimizerStep, losses=lambda event: [event.losses[0] + 0.01])


def batches_spoilt_only(runs):
    probe = {"0": "content 0", "8": "changed", "15": "content 15"}
    change(runs["many"], IterationEnd, None, {"is_training": True}, probe=probe)


FAULTS = [
    (wrapper_bypassed, dict.fromkeys(("loss", "gradients", "parameters", "ranks_agree"), "RF201")),
    (head_bypassed, {"ranks_agree": "RF211"}),
    (sync_in_some_steps, {"ranks_agree": "RF202"}),
    (sync_in_first_backward, {"ranks_agree": "RF202"}),
    (sync_in_every_backward, {"communication": "RF203"}),
    (unused_parameters, {"completes": "RF204"}),
    (unused_parameters_in_small_model, dict.fromkeys((*OF_STEP_0, "completes", "ranks_agree"), "RF204")),
    (buffers_in_place, {"completes": "RF205"}),
    (batchnorm_local, {"batchnorm": "RF206"}),
    (wrapper_attribute, {"completes": "RF207"}),
    (module_of_bare_model, {"completes": "RF207"}),
    (loss_scaled, dict.fromkeys(("loss", "gradients", "parameters"), "RF301")),
    (gradients_halved, dict.fromkeys(("gradients", "parameters"), "RF301")),
    (gradients_of_that_norm, dict.fromkeys(("gradients", "parameters"))),
    (averaged_per_rank, dict.fromkeys(("loss", "gradients", "parameters"), "RF302")),
    (averaged_per_rank_uncounted, dict.fromkeys(("loss", "gradients", "parameters"), "RF302")),
    (pairs_in_batch, dict.fromkeys(("loss", "gradients", "parameters"), "RF303")),
    (pairs_in_batch_unseen, dict.fromkeys(("loss", "gradients", "parameters"), "RF303")),
    (gathered_without_gradient, dict.fromkeys(("gradients", "parameters"), "RF303")),
    (own_rows_with_all_gathered, dict.fromkeys(("gradients", "parameters"), "RF303")),
    (weights_changed_on_one_rank, {"ranks_agree": None}),
    (lr_scaled, {"lr": "RF304"}),
    (lr_scaled_and_schedule_too_short, {"lr": "RF305"}),
    (lr_scaled_and_effective, dict.fromkeys(("lr", "loss", "parameters"), "RF304")),
    (schedule_too_short, {"lr": "RF305"}),
    (lr_decided_by_each_rank, dict.fromkeys(("lr", "ranks_agree"), "RF401")),
    (initial_weights_differ, dict.fromkeys(("initial_state", "ranks_agree"), "RF201")),
    (weights_drawn_after_wrapping, {"initial_state": "RF213", "ranks_agree": "RF108"}),
    (weights_drawn_by_rank, {"initial_state": "RF108", "ranks_agree": "RF108"}),
    (a_rank_makes_no_step, {"ranks_agree": "RF209"}),
    (initial_weights_of_another_seed, {"initial_state": None}),
    (batches_spoilt_and_resumed, dict.fromkeys(("split", "resume"), "RF110")),
    (batches_spoilt, dict.fromkeys(("split", "loss"), "RF110")),
]


@pytest.mark.parametrize(("spoil", "expected"), FAULTS, ids=[spoil.__name__ for spoil, _ in FAULTS])
def test_a_fault_in_the_training_fails_its_own_checks(spoil, expected):
    runs = sound_runs()
    spoil(runs)
    assert failures(run_checks(runs)) == expected
    assert set(filter(None, expected.values())) <= set(CATALOG)


def clip(runs, alone, *of_ranks):
    """Let the gradients be clipped at every step, with these norms before."""
    for name, norms in {"reference": [alone], "many": of_ranks}.items():
        for rank, norm in enumerate(norms):
            for number in range(4):
                insert(runs[name], [rank], OptimizerStep, GradientClip(norm), number)


@pytest.mark.parametrize(
    ("norms", "cause", "words"),
    [
        ((1.0, 1.0, 1.0), None, ""),
        ((1.0, 2.0, 2.0), "RF301", "2 times those of one process before they are clipped, which hides it"),
        ((1.0, 1.1, 0.9), "RF202", "clipped before they are averaged over the ranks"),
    ],
)
def test_what_clipping_hides_is_named(norms, cause, words):
    runs = sound_runs()
    clip(runs, *norms)
    verdict = next(verdict for verdict in run_checks(runs) if verdict.check == "gradients")
    assert (verdict.status, verdict.cause) == (("FAIL", cause) if cause else (PASS, None))
    assert words in verdict.summary


def averaged_too_early(runs):
    """FSDP: each rank holds shards of the weights, which cannot differ between ranks."""
    for number in range(4):
        for rank in (0, 1):
            insert(runs["many"], [rank], OptimizerStep, BackwardCall(0.0), number)
    for event in events_of(runs["many"], OptimizerStep):
        spoil(event, gradients=[[9.0, 9.0] for _ in event.gradients])


def own_buffers(runs):
    """A codebook that each rank has drawn for itself, and that is not sent."""
    pairs_in_batch_unseen(runs)
    for event in events_of(runs["many"], OptimizerStep, [1]):
        spoil(event, buffers={name: [9.0, 9.0] for name in event.buffers})


@pytest.mark.parametrize(
    ("spoil", "cause", "words"),
    [
        (averaged_too_early, "RF202", "averaged before the last of 2 backward calls"),
        (own_buffers, "RF401", "the ranks compute with other values of buffers"),
    ],
)
def test_what_no_rank_disagrees_on_has_a_cause(spoil, cause, words):
    runs = sound_runs()
    spoil(runs)
    verdict = next(verdict for verdict in run_checks(runs) if verdict.check == "gradients")
    assert verdict.cause == cause and words in verdict.summary


@pytest.mark.parametrize(
    ("numbers", "cause", "words"),
    [
        ((1.0, 1.0), "RF401", "computed from each rank's own samples: bn.running_mean"),
        ((1.0, 2.0), None, "BatchNorm has seen another number of batches than on one process"),
    ],
)
def test_buffers_of_own_samples_are_told_from_a_pass_that_is_left_out(numbers, cause, words):
    runs = sound_runs()
    for name, number, mean in zip(("many", "reference"), numbers, (9.0, 8.0)):
        zero = {"zero.running_mean": [1e-17 * mean, 0.0]}
        buffers = {**zero, "bn.running_mean": [mean, mean], "bn.num_batches_tracked": [number, number]}
        for event in events_of(runs[name], OptimizerStep, [0]):
            spoil(event, buffers=buffers)
    fault = other_buffers(runs, 1, 1e-8)
    assert fault.cause == cause and words in fault.summary


def left(runs, alone, ranks, factors=(None, None), is_sharded=False):
    """Say what the backward before the first step leaves of two parameters' gradients, by norm and projection."""
    for name, rows in {"reference": [(alone, 1.0)], "many": zip(ranks, factors)}.items():
        for rank, (values, factor) in enumerate(rows):
            event = BackwardGradients(0, [[2.0, value] for value in values], factor, is_sharded)
            insert(runs[name], [rank], OptimizerStep, event)


@pytest.mark.parametrize(
    ("found", "cause"),
    [
        ({"alone": (1.0, 0.5), "ranks": [(0.5, 0.5), (1.5, 0.5)]}, "RF202"),  # each is changed before the mean
        ({"alone": (1.0, 0.5), "ranks": [(1.0, 0.5), (1.0, 0.5)]}, None),  # DDP has averaged them
        ({"alone": (1.0, 0.5), "ranks": [(0.7, 0.5), (1.5, 0.5)]}, None),  # another gradient: of the loss
        ({"alone": (1.0, 0.5), "ranks": [(1.0, 0.5), (1.0, 0.5)], "factors": (0.3, 0.4)}, "RF216"),
        ({"alone": (1.0, 0.5), "ranks": [(1.0, 0.5), (1.0, 0.5)], "factors": (0.3, 0.3)}, None),
        ({"alone": (1.0, 0.5), "ranks": [(0.7, 0.5), (1.5, 0.5)], "factors": (0.3, 0.4)}, None),  # not averaged before
        ({"alone": (1.0, 0.5), "ranks": [(0.7, 0.5), (1.5, 0.5)], "factors": (0.3, 0.4), "is_sharded": True}, "RF216"),
        ({"alone": (1.0, 0.5), "ranks": [(0.7, 0.5), (1.5, 0.5)], "factors": (1, 0.9998), "is_sharded": True}, "RF216"),
        ({"alone": (1.0, 0.5), "ranks": [(0.5, 0.5), (1.5, 0.5)], "is_sharded": True}, None),
    ],
)
def test_what_changes_gradients_between_backward_and_step_is_named(found, cause):
    runs = sound_runs()
    left(runs, **found)
    fault = changed_before_step(runs, 0)
    assert (fault.cause if fault else None) == cause


@pytest.mark.parametrize(
    ("missing", "cause", "words"),
    [
        ({0: [0, 1], 1: [0, 1]}, "RF211", "the parameters that the optimizer has"),
        ({0: [1], 1: [1]}, None, "no gradient reaches b on any rank"),
        ({0: [1]}, None, None),  # one rank has a gradient
        ({}, None, None),
    ],
)
def test_parameters_without_a_gradient_on_all_ranks_are_named(missing, cause, words):
    runs = sound_runs()
    for name in ("many", "reference"):
        for rank in runs[name].ranks:
            for event in events_of(runs[name], OptimizerStep, [rank.rank]):
                given = [None if place in missing.get(rank.rank, []) else [1.0, 0.5] for place in range(2)]
                spoil(event, gradients=given if name == "many" else [[1.0, 0.5]] * 2)
            for event in events_of(runs[name], OptimizerFound, [rank.rank]):
                spoil(event, names=["a", "b"])
    fault = not_reached(runs, 0)
    assert (fault and fault.cause, fault is None) == (cause, words is None)
    assert words is None or words in fault.summary


@pytest.mark.parametrize(
    ("norms", "factors", "of_one", "cause"),
    [
        ((0.6, 0.8), (1.0, 1.0), 0.7, "RF216"),  # shards of the gradient of one process, which clips it
        ((0.6, 0.8), (0.7, 0.7), 0.7, None),
        ((0.6, 0.9), (1.0, 1.0), 0.7, None),  # of another gradient
        ((0.6, 0.8), (None, None), 0.7, None),  # not by one number
    ],
)
def test_shards_that_are_multiplied_by_another_number_than_on_one_process_are_named(norms, factors, of_one, cause):
    runs = sound_runs()
    for rank, (norm, factor) in enumerate(zip(norms, factors)):
        insert(runs["many"], [rank], OptimizerStep, BackwardGradients(0, [[norm, 0.1]], factor, True))
    insert(runs["reference"], [0], OptimizerStep, BackwardGradients(0, [[1.0, 0.3]], of_one, True))
    fault = changed_before_step(runs, 0)
    assert (fault.cause if fault else None) == cause
    assert fault is None or "0.7 on one process" in fault.value


def test_gradients_are_multiplied_by_one_number_if_all_are():
    assert common_factor([[1.0, 0.5], None, [3.0, 1.0]], [[0.5, 0.25], [1.0, 1.0], [1.5, 0.5]]) == 0.5
    assert common_factor([[1.0, 0.5], [3.0, 1.0]], [[0.5, 0.25], [1.5, 0.7]]) is None
    assert common_factor([[1.0, 0.5]], [[0.5, 0.25]]) is None  # of one alone it says nothing


def gradients_apart(run, number, places):
    """Let rank 1 step with other gradients of some parameters, and have other weights afterwards."""
    for event in events_of(run, OptimizerStep, [1], number=number):
        gradients, hashes = list(event.gradients), list(event.parameter_hashes)
        for place in places:
            gradients[place], hashes[place] = [9.0, 9.0], f"{hashes[place]} of rank 1"
        spoil(event, gradients=gradients, parameter_hashes=hashes, parameter_hash="".join(hashes))


def test_gradients_of_which_a_copy_is_averaged_are_named():
    runs = sound_runs()
    for number in range(4):
        gradients_apart(runs["many"], number, [0, 1])
    verdict = next(verdict for verdict in run_checks(runs) if verdict.check == "ranks_agree")
    assert verdict.cause == "RF211" and "a copy of them" in verdict.summary


def test_a_loss_between_those_of_the_ranks_needs_counts_to_be_a_mean_over_them():
    assert counts_by_losses([1.0, 3.0], 1.0 + 2.0 * 37 / 83) == (46, 83)
    assert counts_by_losses([1.0, 3.0], 1.0 + 2.0 / 3.14159265358979) is None
    assert counts_by_losses([1.0, 3.0], 2.0) is None
    assert counts_by_losses([1.0, 3.0], 4.0) is None


TEXTS = [
    (
        head_bypassed,
        "ranks_agree",
        0,
        "the gradient of fc.bias is never averaged",
        "1 of 2 parameters differ: fc.bias",
    ),
    (sync_in_some_steps, "ranks_agree", 1, "gradients are averaged in 2 of 4 steps, not in this one", "2 of 2"),
    (sync_in_first_backward, "ranks_agree", 0, "averaged before the last of 2 backward calls", "fc.weight, fc.bias"),
    (sync_in_every_backward, "communication", 0, "all-reduced 2 times per optimizer step", "24 elements"),
    (batchnorm_local, "batchnorm", None, "statistics of 4 of 8 samples (3 channels)", None),
    (loss_scaled, "loss", 0, "loss or gradients are 2 times", "loss 2 with 2 processes, 1 with 1"),
    (
        averaged_per_rank,
        "loss",
        0,
        "each rank averages over its own elements (7, 4)",
        "loss 1 with 2 processes, 1.01 with 1",
    ),
    (lr_scaled_and_effective, "parameters", 0, "follows from the learning rate of step 0 (see lr)", "norm"),
    (lr_scaled, "lr", 0, "every learning rate is 2 times", "learning rate 0.2 with 2 processes, 0.1 with 1"),
    (schedule_too_short, "lr", 1, "changes at other steps", "learning rate 0.05 with 2 processes, 0.1 with 1"),
    (lr_decided_by_each_rank, "lr", 2, "not the same on all ranks", "by rank: 0.05, 0.005"),
    (wrapper_bypassed, "loss", 1, "follows from the ranks' different weights after step 0", "loss 0.55"),
    (initial_weights_differ, "initial_state", None, "differ between ranks", "2 of 2 parameters differ"),
]


@pytest.mark.parametrize(("spoil", "check", "step", "summary", "value"), TEXTS, ids=[row[0].__name__ for row in TEXTS])
def test_a_finding_says_where_and_what(spoil, check, step, summary, value):
    runs = sound_runs()
    spoil(runs)
    verdict = next(verdict for verdict in run_checks(runs) if verdict.check == check)
    assert verdict.step == step
    assert summary in verdict.summary
    assert verdict.value is None if value is None else value in verdict.value


def weights_apart(run, by, first_step, loss_at_start=0.0):
    """Let the weights and gradients of a run be others from a step on."""
    for event in events_of(run, OptimizerStep):
        if event.number >= first_step:
            for name in ("parameters", "gradients"):
                spoil(event, **{name: [[norm + by, projection] for norm, projection in getattr(event, name)]})
        if event.number == 0 and loss_at_start:
            spoil(event, losses=[loss + loss_at_start for loss in event.losses])


@pytest.mark.parametrize(
    ("by", "of_order", "at_start", "is_rounding"),
    [
        (1e-6, 1e-6, 0.0, True),
        (1e-6, 1e-8, 0.0, False),  # much more than by another order
        (1e-6, 1e-6, 0.1, False),  # the loss depends on the order
        (1e-6, None, 0.0, False),
        (0.0, None, 0.0, True),
    ],
)
def test_what_another_order_of_a_batch_changes_as_much_is_rounding(by, of_order, at_start, is_rounding):
    runs = sound_runs()
    weights_apart(runs["many"], by, 2)
    assert may_be_rounding(runs, 1e-8) is (by > 0)
    if of_order is not None:
        runs["reordered"] = run_of("reordered", replay=True)
        weights_apart(runs["reordered"], of_order, 2, at_start)
    verdicts = {verdict.check: verdict for verdict in run_checks(runs)}
    assert (verdicts["gradients"].status == PASS) is is_rounding
    assert (verdicts["parameters"].status == PASS) is is_rounding
    is_said = "another order" in (verdicts["parameters"].note or "")
    assert is_said is (is_rounding and by > 0)


GROWING, GROWING_MORE = [4e-14 * 1.7**step for step in range(20)], [9e-14 * 1.9**step for step in range(20)]

KINKED = [1e-12 * 7.0**step for step in range(6)]


@pytest.mark.parametrize(
    ("own", "reordered", "is_grown"),
    [
        (GROWING_MORE, GROWING, [True] * 20),
        ([9e-14 * 2.3**step for step in range(20)], GROWING, [True] * 20),
        ([9e-14 * 6.0**step for step in range(20)], GROWING, [True] * 2 + [False] * 18),  # far more than rounding
        (GROWING_MORE, [4e-14] * 20, [True] * 4 + [False] * 16),  # rounding does not grow here
        ([*GROWING_MORE[:8], *[1e-9] * 12], GROWING, [True] * 8 + [False] * 12),  # a jump
        ([1e-9] * 20, GROWING, [False] * 20),
        ([*KINKED, 9e-8, 3e-3, 0.5], [*KINKED, 9e-8, 9e-7, 0.09], [True] * 9),  # a kink, which one process meets, too
        ([*KINKED, 9e-8, 3e-3, 0.5], [*KINKED, 9e-8, 9e-7, 5e-6], [True] * 7 + [False] * 2),  # and where it does not
        ([*KINKED[:4], 3e-3, 0.5], [*KINKED, 9e-8, 9e-7, 0.09], [True] * 4 + [False] * 2),  # too early
        (GROWING_MORE, GROWING[:5], [True] * 5 + [False] * 15),
        ([0.0] * 20, [0.0] * 20, [True] * 20),
        ([], GROWING, []),
    ],
)
def test_rounding_grows_step_by_step_and_a_fault_does_not(own, reordered, is_grown):
    assert grown_steps(own, reordered) == is_grown


@pytest.mark.parametrize(("last", "causes"), [(6e-11, {}), (4e-8, {"gradients": None})])
def test_differences_that_have_grown_from_rounding_are_right(last, causes):
    runs = sound_runs()
    runs["reordered"] = run_of("reordered", replay=True)
    for name, sizes in (("many", (1e-13, 8e-13, 7e-12, last)), ("reordered", (1e-13, 5e-13, 9e-13, 5e-12))):
        for event, size in zip(events_of(runs[name], OptimizerStep, [0]), sizes):
            spoil(event, gradients=[[norm * (1 + size), projection] for norm, projection in event.gradients])
    assert failures(run_checks(runs, CheckOptions(tolerance=1e-11))) == causes


def test_a_large_first_difference_is_not_taken_for_rounding():
    runs = sound_runs()
    weights_apart(runs["many"], 0.01, 0)
    assert not may_be_rounding(runs, 1e-8)


@pytest.mark.parametrize(("of_order", "is_rounding"), [(1.0, True), (1e-3, False)])
def test_what_a_network_makes_of_a_rounding_error_in_later_steps_may_be_large(of_order, is_rounding):
    runs = sound_runs()
    runs["reordered"] = run_of("reordered", replay=True)
    for name, factor in (("many", 1.0), ("reordered", of_order)):
        weights_apart(runs[name], 1e-6 * factor, 1)
        weights_apart(runs[name], 0.02 * factor, 2)
        for event in events_of(runs[name], OptimizerStep):
            spoil(event, losses=[loss + 0.01 * factor * (event.number >= 2) for loss in event.losses])
    assert may_be_rounding({name: runs[name] for name in ("many", "reference")}, 1e-8)
    verdicts = {verdict.check: verdict for verdict in run_checks(runs)}
    assert {verdicts[name].status == PASS for name in ("loss", "gradients", "parameters")} == {is_rounding}
