"""Hand-written evidence of a sound training: two ranks, two epochs of two optimizer steps, an evaluation after each.

16 training samples in global batches of 8, 6 validation samples, one model of two parameters with BatchNorm that is
synchronised, one checkpoint. `sound_runs()` passes every check; a test spoils one thing in it.
"""

from __future__ import annotations

import copy
import random

from retrofit.verify.evidence import RankTrace, Run
from retrofit.verify.trace.events import (
    BackwardCall,
    BatchDrawn,
    CollectiveCall,
    DecisionInput,
    EpochOrder,
    FileChange,
    FileLoad,
    FileSave,
    GroupJoin,
    InitialWeights,
    IterationEnd,
    IterationStart,
    LoggedScalar,
    OptimizerFound,
    OptimizerStep,
    OutputLine,
    ParserUse,
    ProcessExit,
    ProcessStart,
    ScriptError,
    ValidCount,
)

NAMES, SHAPES = ["fc.weight", "fc.bias"], [[3, 3], [3]]
NUM_ELEMENTS = 12
STEPS_PER_EPOCH, BATCH, WORLD = 2, 8, 2
TRAIN, VAL = "Pictures:16:0", "Pictures:6:0"
KEYS = {"model/fc.weight": "float32[3, 3]", "model/fc.bias": "float32[3]", "optimizer/lr": "float", "epoch": "int"}
METRIC = (0.8125, 0.9375)  # after each epoch


class Recorder:
    """Collects the events of one process."""

    def __init__(self, rank=0):
        self.rank, self.events, self.step, self.passes, self.rate = rank, [], 0, 0, 0.1

    def add(self, event):
        self.events.append(spoil(event, seconds=round(len(self.events) * 0.01, 4), step=self.step))

    def begin(self, dataset, length, epoch, repeat, batch_size, grad_enabled, probe=None):
        streams = {name: f"{name} of rank {self.rank}" for name in ("python", "numpy", "torch")}
        self.passes += 1
        self.add(
            iteration_start(
                self.passes - 1,
                dataset,
                length,
                epoch=epoch,
                repeat=repeat,
                samplers=[
                    "BatchSampler",
                    *(["ShardedSampler", "RandomSampler"] if grad_enabled else ["SequentialSampler"]),
                ],
                batch_size=batch_size,
                grad_enabled=grad_enabled,
                streams={**streams, "loader": None},
                probe=probe,
            )
        )
        return self.passes - 1


def iteration_start(iteration, dataset, length, **fields):
    usual = {"is_map": True, "epoch": 0, "repeat": 0, "samplers": [], "batch_size": length, "drop_last": False}
    usual.update(num_workers=0, num_batches=None, grad_enabled=True, streams={}, members=None, probe=None)
    return IterationStart(iteration, dataset, length=length, **{**usual, **fields})


def collective_call(op, numel, dtype="float64", in_backward=True):
    return CollectiveCall(0, op, numel, dtype, None, in_backward)


def order_of_epoch(epoch, flavour=""):
    order = list(range(16))
    random.Random(f"{flavour}{epoch}").shuffle(order)
    return order


def chunks(order, size):
    return [order[start : start + size] for start in range(0, len(order), size)]


def weights(step, flavour="double"):
    """Return the weights when `step` steps are done."""
    values = [[1.0 + 0.1 * step, 0.5 - 0.05 * step], [0.3 + 0.02 * step, 0.1 * step]]
    hashes = [f"{flavour} {name} {step}" for name in NAMES]
    return {"parameters": values, "parameter_hash": "+".join(hashes), "parameter_hashes": hashes}


def reference_loss(step):
    return 1.0 / (step + 1)


def rank_loss(step, rank, world):
    """Return a rank's loss: not that of the others, and their mean is that of one process."""
    return reference_loss(step) + (0.125 * (rank - (world - 1) / 2) if world > 1 else 0.0)


def step_event(recorder, loss, rows, flavour="double"):
    done = recorder.first_step + recorder.step + 1
    recorder.add(
        OptimizerStep(
            optimizer=0,
            number=recorder.step,
            lr=[recorder.rate if recorder.first_step + recorder.step < STEPS_PER_EPOCH else recorder.rate / 2],
            losses=[loss],
            rows=rows,
            gradients=[[0.5 / done, 0.25 / done], [0.2 / done, -0.1 / done]],
            gradient_norm=0.55 / done,
            **weights(done, flavour),
            buffers={"bn.running_mean": [0.1 * done, 0.05]},
            buffer_hash=f"{flavour} buffers {done}",
            dtype="float64" if flavour == "double" else "float32",
        )
    )
    recorder.step += 1


def train_epoch(recorder, epoch, order, batches, world, flavour):
    probe = {"0": "content 0", "8": "content 8", "15": "content 15"} if flavour == "double" else None
    size = len(batches[0])
    number = recorder.begin(TRAIN, 16, epoch, 0, size, True, probe=probe if epoch == recorder.first_epoch else None)
    recorder.add(EpochOrder(number, order, is_complete=True))
    for k, batch in enumerate(batches):
        recorder.add(BatchDrawn(number, k, batch))
        if recorder.first_step + recorder.step == STEPS_PER_EPOCH * recorder.first_epoch and k == 0:
            recorder.add(OptimizerFound(0, "SGD", NAMES, SHAPES, device=None, base_lr=[recorder.rate]))
            recorder.add(InitialWeights(0, **weights(recorder.first_step, flavour)))
            if recorder.stops:
                return
        loss = rank_loss(recorder.first_step + recorder.step, recorder.rank, world)
        recorder.add(ValidCount("cross_entropy", len(batch)))
        recorder.add(BackwardCall(loss))
        if world > 1:
            recorder.add(collective_call("allreduce_", NUM_ELEMENTS))
        step_event(recorder, loss, len(batch), flavour)
    recorder.add(
        IterationEnd(number, is_training=True, is_exhausted=True, is_capped=False, draws=["numpy"], probe=probe)
    )


def evaluate(recorder, epoch, share, world):
    number = recorder.begin(VAL, 6, recorder.first_epoch, epoch - recorder.first_epoch, 3, False)
    for event in evaluation_events(number, share):
        recorder.add(event)
    if world > 1:
        recorder.add(collective_call("allreduce_", 2, in_backward=False))
    recorder.add(DecisionInput("train.py", 88, "accuracy > best", "parts", ["accuracy"], [METRIC[epoch]]))
    if recorder.rank == 0:
        recorder.add(OutputLine(f"epoch {epoch} accuracy {METRIC[epoch]:.3f}", "stdout"))
        recorder.add(LoggedScalar("val/accuracy", METRIC[epoch], axis=recorder.first_step + recorder.step))


def evaluation_events(iteration, share):
    """Return what follows the start of an evaluation."""
    end = IterationEnd(iteration, is_training=False, is_exhausted=True, is_capped=False, draws=[], probe=None)
    return [EpochOrder(iteration, [share], is_complete=True), BatchDrawn(iteration, 0, share), end]


def process(rank, world, flavour="double", replay=False, epochs=(0, 1), stops=False, times=1):
    """Return the trace of one process of a sound run, with a batch and a rate that are `times` as large."""
    recorder = Recorder(rank)
    recorder.first_epoch, recorder.stops, recorder.rate = epochs[0], stops, 0.1 * times
    recorder.first_step = STEPS_PER_EPOCH * epochs[0]
    recorder.add(ProcessStart(rank, world, torch="2.9", cuda=False, threads=1))
    recorder.add(ParserUse([], {"--local_rank": True, "--local-rank": True}, refuses_unknown=True))
    if world > 1:
        recorder.add(GroupJoin("gloo", world, rank, master_port="29501", launcher_port="29501"))
    recorder.add(FileChange("mkdir", "runs"))
    if rank == 0:
        recorder.add(FileChange("write", "runs/events.out.tfevents.1.host"))
    for epoch in epochs:
        drawn = order_of_epoch(epoch)[rank::world] if world > 1 else order_of_epoch(epoch, flavour)
        order = chunks(drawn, times * BATCH // world)
        shares = [chunks(order_of_epoch(epoch)[r::WORLD], BATCH // WORLD) for r in range(WORLD)]
        batches = [a + b for a, b in zip(*shares)] if replay else order
        train_epoch(recorder, epoch, order, batches, world, flavour)
        if stops:
            break
        evaluate(recorder, epoch, list(range(6))[rank::world], world)
        if rank == 0:
            recorder.add(FileChange("write", "runs/last.pt"))
            recorder.add(FileSave("runs/last.pt", dict(KEYS)))
    recorder.add(ProcessExit(0, None))
    return RankTrace(rank, recorder.events)


def run_of(name, world=1, **options):
    traces = [process(rank, world, **options) for rank in range(world)]
    return Run(name, world, traces, [0] * world, seconds=1.0, logs=[""] * world)


def sound_runs(original=True):
    """Return the evidence of all runs of a script whose move to two processes is right."""
    runs = {
        "one": run_of("one", flavour="single"),
        "many": run_of("many", WORLD),
        "default": run_of("default", WORLD, times=WORLD),
        "reference": run_of("reference", replay=True),
        "resumed": run_of("resumed", WORLD, epochs=(1,)),
        "reload": run_of("reload", epochs=(1,), stops=True),
    }
    for rank in runs["resumed"].ranks:  # every rank of a resumed run loads
        place = next(i for i, event in enumerate(rank.events) if isinstance(event, IterationStart))
        rank.events.insert(place, FileLoad("runs/last.pt", has_map_location=True, is_own=True))
    if original:
        runs["original"] = run_of("original", flavour="single")
        runs["reload_original"] = run_of("reload_original", epochs=(1,), stops=True)
    return runs


# --- what tests change -----------------------------------------------------------------------------------------------


def spoil(event, **values):
    """Change an event, which is frozen for everybody else, and return it."""
    vars(event).update(values)
    return event


def copy_of(event, **values):
    return spoil(copy.copy(event), **values)


def events_of(run, kind, ranks=None, /, **having):
    """Return the events of a kind on some ranks (all by default) that have the given values."""
    return [
        event
        for trace in run.ranks
        if ranks is None or trace.rank in ranks
        for event in trace.events
        if isinstance(event, kind) and all(getattr(event, key) == value for key, value in having.items())
    ]


def change(run, kind, /, ranks=None, having=None, **values):
    """Set values in events; a callable value gets the event."""
    found = events_of(run, kind, ranks, **(having or {}))
    assert found, f"no {kind} with {having}"
    for event in found:
        for key, value in values.items():
            assert hasattr(event, key), key
            spoil(event, **{key: value(event) if callable(value) else value})


def remove(run, kind, ranks=None, /, **having):
    unwanted = [id(event) for event in events_of(run, kind, ranks, **having)]
    assert unwanted, f"no {kind} with {having}"
    for trace in run.ranks:
        trace.events = [event for event in trace.events if id(event) not in unwanted]


def insert(run, ranks, before, event, number=0):
    """Insert an event before the `number`-th event of kind `before`."""
    for rank in ranks:
        events = run.ranks[rank].events
        place = [i for i, other in enumerate(events) if isinstance(other, before)][number]
        events.insert(place, at_the_time_of(events[place], event))


def at_the_time_of(other, event):
    return copy_of(event, seconds=other.seconds, step=other.step)


def cut(run, rank, kind, number, status, error=None, where="train.py:12 in main"):
    """End a rank before the `number`-th event of a kind: with an error, or killed."""
    events = run.ranks[rank].events
    place = [i for i, event in enumerate(events) if isinstance(event, kind)][number]
    last = events[place]
    del events[place:]
    if error is not None:
        name, message = error
        details = ScriptError(name, message, where, traceback=f"{name}: {message}")
        events.append(at_the_time_of(last, ProcessExit(status, details)))
    run.statuses[rank] = status


def redraw(run, share_of_epoch, size=None):
    """Give the ranks other samples: `share_of_epoch(rank, epoch)` is a rank's order."""
    for trace in run.ranks:
        epoch, iteration = -1, None
        for event in trace.events:
            if isinstance(event, IterationStart) and event.grad_enabled:
                epoch, iteration = epoch + 1, event.iteration
                batches = chunks(share_of_epoch(trace.rank, epoch), size or BATCH // run.world_size)
            elif isinstance(event, EpochOrder) and event.iteration == iteration:
                spoil(event, batches=batches)
            elif isinstance(event, BatchDrawn) and event.iteration == iteration:
                spoil(event, samples=batches[event.number])


def failures(verdicts):
    """Return the cause of each check that failed."""
    return {verdict.check: verdict.cause for verdict in verdicts if verdict.status == "FAIL"}
