"""Hand-written evidence of a sound training: two ranks, two epochs of two optimizer steps, an evaluation after each.

16 training samples in global batches of 8, 6 validation samples, one model of two parameters with BatchNorm that is
synchronised, one checkpoint. `sound_runs()` passes every check; a test spoils one thing in it.
"""

from __future__ import annotations

import random

from retrofit.verify.evidence import RankTrace, Run

NAMES, SHAPES = ["fc.weight", "fc.bias"], [[3, 3], [3]]
NUM_ELEMENTS = 12
STEPS_PER_EPOCH, BATCH, WORLD = 2, 8, 2
TRAIN, VAL = "Pictures:16:0", "Pictures:6:0"
KEYS = {"model/fc.weight": "float32[3, 3]", "model/fc.bias": "float32[3]", "optimizer/lr": "float", "epoch": "int"}
METRIC = (0.8125, 0.9375)  # after each epoch


class Recorder:
    """Collects the events of one process."""

    def __init__(self, rank=0):
        self.rank, self.events, self.step, self.passes = rank, [], 0, 0

    def add(self, kind, /, **fields):
        self.events.append({"e": kind, "t": round(len(self.events) * 0.01, 4), "step": self.step, **fields})

    def begin(self, dataset, length, number, again, batch_size, grad, **more):
        fields = {"iter": self.passes, "dataset": dataset, "kind": "map", "length": length, "number": number}
        sampler = ["BatchSampler", "ShardedSampler", "RandomSampler"] if grad else ["BatchSampler", "SequentialSampler"]
        fields.update(again=again, sampler=sampler, batch_size=batch_size, drop_last=False, workers=0, members=None)
        streams = {name: f"{name} of rank {self.rank}" for name in ("python", "numpy", "torch")}
        fields.update(batches=None, grad=grad, streams={**streams, "loader": None}, probe=None)
        self.passes += 1
        self.add("iter", **{**fields, **more})
        return self.passes - 1


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
    return {"param": values, "param_hash": "+".join(hashes), "param_hashes": hashes}


def reference_loss(step):
    return 1.0 / (step + 1)


def rank_loss(step, rank, world):
    """Return a rank's loss: not that of the others, and their mean is that of one process."""
    return reference_loss(step) + (0.125 * (rank - (world - 1) / 2) if world > 1 else 0.0)


def step_event(recorder, loss, rows, flavour="double"):
    done = recorder.first_step + recorder.step + 1
    recorder.add(
        "step",
        opt=0,
        n=recorder.step,
        lr=[0.1 if recorder.first_step + recorder.step < STEPS_PER_EPOCH else 0.05],
        loss=[loss],
        rows=rows,
        grad=[[0.5 / done, 0.25 / done], [0.2 / done, -0.1 / done]],
        grad_norm=0.55 / done,
        **weights(done, flavour),
        buffers={"bn.running_mean": [0.1 * done, 0.05]},
        buffer_hash=f"{flavour} buffers {done}",
        dtype="float64" if flavour == "double" else "float32",
    )
    recorder.step += 1


def train_epoch(recorder, epoch, order, batches, world, flavour):
    probe = {"0": "content 0", "8": "content 8", "15": "content 15"} if flavour == "double" else None
    size = BATCH // world
    number = recorder.begin(TRAIN, 16, epoch, 0, size, True, probe=probe if epoch == recorder.first_epoch else None)
    recorder.add("order", iter=number, batches=order, complete=True)
    for k, batch in enumerate(batches):
        recorder.add("batch", iter=number, k=k, samples=batch)
        if recorder.first_step + recorder.step == STEPS_PER_EPOCH * recorder.first_epoch and k == 0:
            recorder.add("optimizer", opt=0, type="SGD", names=NAMES, shapes=SHAPES)
            recorder.add("initial", opt=0, **weights(recorder.first_step, flavour))
            if recorder.stops:
                return
        loss = rank_loss(recorder.first_step + recorder.step, recorder.rank, world)
        recorder.add("valid", op="cross_entropy", count=len(batch))
        recorder.add("backward", loss=loss)
        if world > 1:
            recorder.add("collective", n=0, op="allreduce_", numel=NUM_ELEMENTS, dtype="float64", backward=True)
        step_event(recorder, loss, len(batch), flavour)
    recorder.add("iter_end", iter=number, train=True, exhausted=True, capped=False, draws=["numpy"], probe=probe)


def evaluate(recorder, epoch, share, world):
    again = epoch - recorder.first_epoch
    number = recorder.begin(VAL, 6, recorder.first_epoch, again, 3, False)
    recorder.add("order", iter=number, batches=[share], complete=True)
    recorder.add("batch", iter=number, k=0, samples=share)
    recorder.add("iter_end", iter=number, train=False, exhausted=True, capped=False, draws=[], probe=None)
    if world > 1:
        recorder.add("collective", n=0, op="allreduce_", numel=2, dtype="float64", backward=False)
    if recorder.rank == 0:
        recorder.add("line", text=f"epoch {epoch} accuracy {METRIC[epoch]:.3f}", stream="stdout")
        recorder.add("scalar", name="val/accuracy", value=METRIC[epoch], axis=recorder.first_step + recorder.step)


def process(rank, world, flavour="double", replay=False, epochs=(0, 1), stops=False):
    """Return the trace of one process of a sound run."""
    recorder = Recorder(rank)
    recorder.first_epoch, recorder.stops = epochs[0], stops
    recorder.first_step = STEPS_PER_EPOCH * epochs[0]
    recorder.add("start", rank=rank, world_size=world, torch="2.9", cuda=False, threads=1)
    recorder.add("parser", options=[], accepts_local_rank={"--local_rank": True, "--local-rank": True})
    if world > 1:
        ports = {"master_port": "29501", "launcher_port": "29501"}
        recorder.add("group", backend="gloo", world_size=world, rank=rank, **ports)
    recorder.add("file", op="mkdir", path="runs")
    if rank == 0:
        recorder.add("file", op="write", path="runs/events.out.tfevents.1.host")
    for epoch in epochs:
        drawn = order_of_epoch(epoch)[rank::world] if world > 1 else order_of_epoch(epoch, flavour)
        order = chunks(drawn, BATCH // world)
        shares = [chunks(order_of_epoch(epoch)[r::WORLD], BATCH // WORLD) for r in range(WORLD)]
        batches = [a + b for a, b in zip(*shares)] if replay else order
        train_epoch(recorder, epoch, order, batches, world, flavour)
        if stops:
            break
        evaluate(recorder, epoch, list(range(6))[rank::world], world)
        if rank == 0:
            recorder.add("file", op="write", path="runs/last.pt")
            recorder.add("save", path="runs/last.pt", keys=dict(KEYS))
    recorder.add("exit", status=0, error=None)
    return RankTrace(rank, recorder.events)


def run_of(name, world=1, **options):
    traces = [process(rank, world, **options) for rank in range(world)]
    return Run(name, world, traces, [0] * world, seconds=1.0, logs=[""] * world)


def sound_runs(original=True):
    """Return the evidence of all runs of a script whose move to two processes is right."""
    runs = {
        "one": run_of("one", flavour="single"),
        "many": run_of("many", WORLD),
        "reference": run_of("reference", replay=True),
        "resumed": run_of("resumed", WORLD, epochs=(1,)),
        "reload": run_of("reload", epochs=(1,), stops=True),
    }
    for rank in runs["resumed"].ranks:  # every rank of a resumed run loads
        place = next(i for i, event in enumerate(rank.events) if event["e"] == "iter")
        load = {"e": "load", "t": 0.0, "step": 0, "path": "runs/last.pt", "map_location": True, "own": True}
        rank.events.insert(place, load)
    if original:
        runs["original"] = run_of("original", flavour="single")
        runs["reload_original"] = run_of("reload_original", epochs=(1,), stops=True)
    return runs


# --- what tests change -----------------------------------------------------------------------------------------------


def events_of(run, kind, ranks=None, /, **having):
    """Return the events of a kind on some ranks (all by default) that have the given values."""
    return [
        event
        for trace in run.ranks
        if ranks is None or trace.rank in ranks
        for event in trace.events
        if event["e"] == kind and all(event.get(key) == value for key, value in having.items())
    ]


def change(run, kind, /, ranks=None, having=None, **values):
    """Set values in events; a callable value gets the event."""
    found = events_of(run, kind, ranks, **(having or {}))
    assert found, f"no {kind} with {having}"
    for event in found:
        for key, value in values.items():
            event[key] = value(event) if callable(value) else value


def remove(run, kind, ranks=None, /, **having):
    unwanted = [id(event) for event in events_of(run, kind, ranks, **having)]
    assert unwanted, f"no {kind} with {having}"
    for trace in run.ranks:
        trace.events = [event for event in trace.events if id(event) not in unwanted]


def insert(run, ranks, before, kind, number=0, /, **fields):
    """Insert an event before the `number`-th event of kind `before`."""
    for rank in ranks:
        events = run.ranks[rank].events
        place = [i for i, event in enumerate(events) if event["e"] == before][number]
        events.insert(place, {"e": kind, "t": events[place]["t"], "step": events[place]["step"], **fields})


def cut(run, rank, kind, number, status, error=None, where="train.py:12 in main"):
    """End a rank before the `number`-th event of a kind: with an error, or killed."""
    events = run.ranks[rank].events
    place = [i for i, event in enumerate(events) if event["e"] == kind][number]
    last = events[place]
    del events[place:]
    if error is not None:
        kind, message = error
        details = {"type": kind, "message": message, "where": where, "traceback": f"{kind}: {message}"}
        events.append({"e": "exit", "t": last["t"], "step": last["step"], "status": status, "error": details})
    run.statuses[rank] = status


def redraw(run, share_of_epoch, size=None):
    """Give the ranks other samples: `share_of_epoch(rank, epoch)` is a rank's order."""
    for trace in run.ranks:
        epoch = -1
        for event in trace.events:
            if event["e"] == "iter" and event["grad"]:
                epoch, number = epoch + 1, event["iter"]
                batches = chunks(share_of_epoch(trace.rank, epoch), size or BATCH // run.world_size)
            elif event.get("iter") == (number if epoch >= 0 else None):
                if event["e"] == "order":
                    event["batches"] = batches
                elif event["e"] == "batch":
                    event["samples"] = batches[event["k"]]


def failures(verdicts):
    """Return the cause of each check that failed."""
    return {verdict.check: verdict.cause for verdict in verdicts if verdict.status == "FAIL"}
