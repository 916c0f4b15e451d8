"""Ranks that average their weights every few steps, not their gradients: by design another training."""

from __future__ import annotations

import pytest
from library_scripts import WITH_ACCELERATE, changed
from verify_command import judge
from verify_evidence import NAMES, SHAPES, copy_of, sound_runs

from retrofit.verify.checks import CheckOptions, run_checks
from retrofit.verify.checks.training.ranks_agree import disagreement, ranks_agree
from retrofit.verify.evidence import RankTrace, Run
from retrofit.verify.trace.events import InitialWeights, OptimizerFound, OptimizerStep, WeightsBeforeStep

EVERY, STEPS = 3, 10


def held(values, owner):
    """Return the fields of weights with these values, whose bits are those of `owner`."""
    hashes = [f"{name} of {owner}" for name in NAMES]
    parameters = [[abs(value) + 1.0, value] for value in values]
    return {"parameters": parameters, "parameter_hash": "+".join(hashes), "parameter_hashes": hashes}


def weights_of(rank, step):
    return [0.1 * step + rank, 0.3 * step - 0.5 * rank]


def mean(step):
    return [sum(values) / 2 for values in zip(weights_of(0, step), weights_of(1, step))]


def averaged(rank, step):
    return held(mean(step), f"all {step}")


def summed(rank, step):
    return held([2 * value for value in mean(step)], f"all {step}")


def sent_by_rank_0(rank, step):
    return held(weights_of(0, step), f"0 {step}")


def averaged_in_part(rank, step):
    one, other = held(mean(step), f"all {step}"), held(weights_of(rank, step), f"{rank} {step}")
    hashes = [one["parameter_hashes"][0], other["parameter_hashes"][1]]
    parameters = [one["parameters"][0], other["parameters"][1]]
    return {"parameters": parameters, "parameter_hash": "+".join(hashes), "parameter_hashes": hashes}


def clamped(rank, step):
    return held([min(value, 0.2) for value in weights_of(rank, step)], f"{rank} clamped {step}")


def run_with(made_equal, every=EVERY):
    """Return a run in which each rank steps by itself, and something else changes the weights every few steps."""
    ranks = []
    for rank in range(2):
        events = [
            OptimizerFound(0, "SGD", NAMES, SHAPES, device=None, base_lr=[0.1]),
            InitialWeights(0, **held([0.0, 0.0], "start")),
        ]
        for step in range(STEPS):
            if step and step % every == 0:
                found = made_equal(rank, step - 1)
                own = held(weights_of(rank, step - 1), f"{rank} {step - 1}")
                if found["parameter_hash"] != own["parameter_hash"]:
                    events.append(WeightsBeforeStep(0, step, **found))
            own = held(weights_of(rank, step), f"{rank} {step}")
            gradients = [[1.0, 0.5 + rank], [1.0, 0.5 - rank]]
            fixed = {"gradient_norm": 1.0, "buffers": {}, "buffer_hash": "none", "dtype": "float64"}
            events.append(OptimizerStep(0, step, [0.1], [1.0], 4, gradients, **fixed, **own))
        ranks.append(RankTrace(rank, events))
    return Run("many", 2, ranks, [0, 0])


@pytest.mark.parametrize(("every", "words"), [(3, "after every 3 steps"), (1, "after every step")])
def test_averaged_weights_are_another_training_by_design(every, words):
    run = run_with(averaged, every)
    assert disagreement(run) is None
    verdict = ranks_agree({"many": run}, CheckOptions())
    assert verdict.status == "PASS" and words in verdict.summary
    assert "by design" in verdict.note


WRONG = {
    "summed": (summed, None, "add their weights up"),
    "sent": (sent_by_rank_0, "RF209", "all ranks take the weights of rank 0"),
    "in part": (averaged_in_part, "RF211", "fc.bias is never averaged"),
    "clamped": (clamped, "RF201", "no gradient is averaged"),
}


@pytest.mark.parametrize("name", WRONG)
def test_weights_that_are_not_averaged_fail(name):
    made_equal, cause, words = WRONG[name]
    fault = disagreement(run_with(made_equal))
    assert fault is not None and (fault.cause, fault.step) == (cause, 0) and words in fault.summary


def test_what_one_process_does_not_compute_is_not_compared():
    runs = sound_runs()
    for rank, other in zip(runs["many"].ranks, run_with(averaged, 2).ranks):
        steps = iter([event for event in other.events if isinstance(event, OptimizerStep)])
        before = {event.number: event for event in other.events if isinstance(event, WeightsBeforeStep)}
        for place, event in reversed([(i, e) for i, e in enumerate(rank.events) if isinstance(e, OptimizerStep)]):
            if event.number in before:
                rank.events.insert(place, copy_of(before[event.number], step=event.step))
        for event in [event for event in rank.events if isinstance(event, OptimizerStep)]:
            own = next(steps)
            for key in ("parameters", "parameter_hash", "parameter_hashes", "gradients"):
                vars(event)[key] = getattr(own, key)
    verdicts = {verdict.check: verdict for verdict in run_checks(runs)}
    for check in ("loss", "gradients", "parameters"):
        assert verdicts[check].status == "NOT APPLICABLE" and "by design" in verdicts[check].summary
    assert verdicts["ranks_agree"].status == "PASS"


LOOP = """\
    for batch in train_loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(batch["x"]), batch["y"])
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
"""
LOCAL = "    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=3) as local_sgd:\n"


@pytest.mark.slow
@pytest.mark.usefixtures("forked_python")
def test_local_sgd_of_accelerate_is_not_accused(tmp_path):
    loop = LOCAL + "".join(f"    {line}\n" for line in LOOP.splitlines()) + " " * 16 + "local_sgd.step()\n"
    imports = "from accelerate import Accelerator\n"
    both = imports + "from accelerate.local_sgd import LocalSGD\n"
    (tmp_path / "train.py").write_text(changed(WITH_ACCELERATE, (imports, both), (LOOP, loop)))
    status, report = judge(tmp_path, ["--batch-flag", "batch_size"], ["--batch_size", "8"])
    assert status == 3 and "local SGD" in report["conclusion"], report["conclusion"]
