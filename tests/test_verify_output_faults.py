"""Faults in starting, ending, reporting and saving: each must fail its own check with its own cause."""

from __future__ import annotations

import pytest
from verify_evidence import (
    VAL,
    change,
    collective_call,
    copy_of,
    cut,
    events_of,
    failures,
    insert,
    order_of_epoch,
    redraw,
    remove,
    sound_runs,
    spoil,
)

from retrofit.rules.catalog import CATALOG
from retrofit.verify.checks import run_checks
from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.checks.output.own_figures import own_figures
from retrofit.verify.checks.processes import collectives
from retrofit.verify.trace.events import (
    BackwardCall,
    BatchDrawn,
    CollectiveCall,
    EpochOrder,
    EvaluatedModel,
    FileChange,
    FileLoad,
    FileSave,
    GroupJoin,
    InitialWeights,
    IterationEnd,
    IterationStart,
    LoggedScalar,
    NondeterministicOperator,
    OptimizerFound,
    OptimizerStep,
    OutputLine,
    ParserUse,
    ProcessExit,
    ScriptError,
    StateBeforeStep,
)


def keep_resume_out(runs):
    for name in ("resumed", "reload", "reload_original"):
        del runs[name]


def one_spelling(runs):
    for run in runs.values():
        change(run, ParserUse, accepts_local_rank={"--local_rank": True, "--local-rank": False})


def own_port(runs):
    change(runs["many"], GroupJoin, master_port="12355")


def no_group(runs):
    """The script ignores its launcher: two trainings side by side, each with all samples."""
    keep_resume_out(runs)
    remove(runs["many"], GroupJoin)
    remove(runs["many"], CollectiveCall)
    redraw(runs["many"], lambda rank, epoch: order_of_epoch(epoch))


def metric_per_rank(runs):
    change(runs["many"], LoggedScalar, [0], value=0.75)
    change(runs["many"], OutputLine, [0], text=lambda event: event.text[:-5] + "0.750")


def padded_metric(runs):
    """Six samples with a repeated one: the metric is wrong because the evaluation is."""
    for event in events_of(runs["many"], IterationStart, [1], dataset=VAL):
        change(runs["many"], BatchDrawn, [1], {"iteration": event.iteration}, samples=[1, 3, 5, 0])
    change(runs["many"], LoggedScalar, value=0.8)


def padded_metric_of_own_share(runs):
    """Nothing is reduced or gathered: the figure would be wrong without the padding, too."""
    padded_metric(runs)
    remove(runs["many"], CollectiveCall, numel=2)


def padding_that_no_figure_shows(runs):
    """The accuracy is 1 with and without the padding: it does not tell that the padding was left out."""
    for event in events_of(runs["many"], IterationStart, [1], dataset=VAL):
        change(runs["many"], BatchDrawn, [1], {"iteration": event.iteration}, samples=[1, 3, 5, 0])
    for name in ("many", "reference", "resumed"):
        change(runs[name], LoggedScalar, [0], value=1.0)
        change(runs[name], OutputLine, [0], text="epoch accuracy 1.000")


def figures_too_coarse_for_the_padding(runs):
    padding_that_no_figure_shows(runs)
    for name in ("many", "reference", "resumed"):
        remove(runs[name], LoggedScalar, [0])
        change(runs[name], OutputLine, [0], text="epoch accuracy 0.9")


def collective_on_rank_0(runs):
    """Rank 0 evaluates through the wrapper, which broadcasts buffers; rank 1 is in the next epoch already."""
    keep_resume_out(runs)
    many = runs["many"]
    insert(many, [0], IterationStart, collective_call("broadcast_", 7, in_backward=False), 1)
    cut(many, 0, BatchDrawn, 2, None)
    cut(many, 1, CollectiveCall, 3, None)
    many.hung, many.stacks = True, {0: "train.py:120 in evaluate", 1: "train.py:88 in train"}


def barrier_of_rank_0_at_the_end(runs):
    keep_resume_out(runs)
    insert(runs["many"], [0], ProcessExit, collective_call("barrier", 1, "uint8", in_backward=False))
    cut(
        runs["many"], 0, ProcessExit, 0, 1, ("RuntimeError", "[gloo/pair.cc:534] Connection closed by peer [127.0.0.1]")
    )


def uneven_batches(runs):
    """Rank 1 has no second batch in epoch 0: it ends, and rank 0 loses its connection."""
    keep_resume_out(runs)
    many = runs["many"]
    change(many, EpochOrder, [1], {"iteration": 0}, batches=lambda event: event.batches[:1])
    cut(many, 1, BatchDrawn, 1, 0)
    many.ranks[1].events.append(spoil(ProcessExit(0, None), seconds=0.2, step=1))
    cut(many, 0, OptimizerStep, 1, 1, ("RuntimeError", "[gloo/pair.cc:534] Connection closed by peer [127.0.0.1]"))


def uneven_batches_and_schedules(runs):
    """Each rank's schedule counts its own batches, so the rates differ as well."""
    uneven_batches(runs)
    change(runs["many"], OptimizerStep, [1], lr=[0.07], parameter_hash="of rank 1")


def uneven_batches_not_reached(runs):
    """The shortened training stops before the ranks run out of batches."""
    keep_resume_out(runs)
    extra = [[90, 91, 92, 93]]
    change(runs["many"], EpochOrder, [0], batches=lambda event: event.batches + extra * (event.iteration in (0, 2)))
    change(runs["many"], IterationEnd, having={"is_training": True}, is_capped=True, is_exhausted=False)
    for name in ("one", "original"):
        change(runs[name], IterationStart, having={"grad_enabled": True}, length=20)
        more = [[90, 91, 92, 93]]
        change(
            runs[name], EpochOrder, batches=lambda event, more=more: event.batches + more * (event.iteration in (0, 2))
        )
        change(runs[name], IterationEnd, having={"is_training": True}, is_capped=True, is_exhausted=False)
    for name in ("many", "reference"):
        change(runs[name], IterationStart, having={"grad_enabled": True}, length=20)


def every_rank_saves(runs):
    for name in ("many", "resumed"):
        for event in events_of(runs[name], FileSave, [0]):
            index = runs[name].ranks[1].events
            index.insert(len(index) - 1, copy_of(event, step=4))


def every_rank_saves_its_own(runs):
    insert(runs["many"], [1], ProcessExit, FileSave(path="runs/12-00-01/last.pt", keys={}))
    insert(runs["many"], [1], ProcessExit, FileChange(op="write", path="runs/12-00-01/last.pt"))


def prefix_saved(runs):
    change(
        runs["many"],
        FileSave,
        keys=lambda event: {key.replace("model/", "model/module."): kind for key, kind in event.keys.items()},
    )


def whole_wrapper_saved(runs):
    for name in ("one", "original"):
        change(runs[name], FileSave, keys={"": "module:Net", "fc.weight": "float32[3, 3]"})
    change(runs["many"], FileSave, keys={"": "module:DistributedDataParallel"})


def prefix_refused(runs):
    message = 'Error(s) in loading state_dict for Net: Missing key(s) in state_dict: "fc.weight". Unexpected key(s): '
    cut(runs["reload"], 0, InitialWeights, 0, 1, ("RuntimeError", message + '"module.fc.weight"'))


def no_map_location(runs):
    change(runs["resumed"], FileLoad, [1], has_map_location=False)


def one_gpu_for_all(runs):
    change(runs["many"], OptimizerFound, device="GPU 12ab")


def setup_race(runs):
    keep_resume_out(runs)
    cut(runs["many"], 1, IterationStart, 0, 1, ("EOFError", "Ran out of input"))
    cut(runs["many"], 0, CollectiveCall, 0, 1, ("RuntimeError", "Connection closed by peer [127.0.0.1]:2021"))


def writers_race(runs):
    """Two writers make their folder at once, and one of them finds it there."""
    setup_race(runs)
    trace = "  writer = SummaryWriter(args.out)\nFileExistsError: [Errno 17] File exists: 'runs'"
    error = ScriptError("FileExistsError", "[Errno 17] File exists: 'runs'", None, trace)
    change(runs["many"], ProcessExit, [1], error=error)


def prepared_by_all(runs):
    insert(runs["many"], (0, 1), IterationStart, FileChange(op="write", path="data/cache.npy"))


def race_next_to_checkpoint(runs):
    """The same file before and after the first step: the save is the graver one."""
    prepared_by_all(runs)
    insert(runs["many"], (0, 1), ProcessExit, FileChange(op="write", path="runs/final.bin"))


def tensorboard_on_every_rank(runs):
    insert(runs["many"], [1], IterationStart, FileChange(op="write", path="runs/events.out.tfevents.2.host"))


def scalars_on_every_rank(runs):
    insert(runs["many"], [1], ProcessExit, LoggedScalar(name="val/accuracy", value=0.9375, axis=4))


def log_file_on_every_rank(runs):
    for run in runs.values():
        insert(run, [0], IterationStart, FileChange(op="write", path="runs/train.log"))
    insert(runs["many"], [1], IterationStart, FileChange(op="write", path="runs/train.log"))


def table_of_every_rank(runs):
    """Every rank appends its results to one table."""
    for place in (IterationStart, ProcessExit):
        insert(runs["many"], (0, 1), place, FileChange(op="write", path="runs/results.csv"))


def table_for_every_rank(runs):
    """Ranks have tables of their own, in folders named by the time."""
    for place in (IterationStart, ProcessExit):
        insert(runs["many"], [0], place, FileChange(op="write", path="runs/12-00-00/results.csv"))
        insert(runs["many"], [1], place, FileChange(op="write", path="runs/12-00-01/results.csv"))


def axis_per_rank(runs):
    change(runs["many"], LoggedScalar, axis=lambda event: event.axis * 2)


def scheduler_forgotten(runs):
    change(runs["resumed"], OptimizerStep, lr=[0.1])


def position_forgotten(runs):
    redraw(runs["resumed"], lambda rank, epoch: order_of_epoch(0)[rank::2])


def momentum_forgotten(runs):
    change(
        runs["resumed"],
        OptimizerStep,
        parameter_hash=lambda event: event.parameter_hash + " slower",
        parameters=lambda event: [[norm - 0.01, projection] for norm, projection in event.parameters],
    )


def buffers_forgotten(runs):
    change(runs["resumed"], OptimizerStep, losses=lambda event: [event.losses[0] + 0.01])


def nothing_loaded(runs):
    initial = events_of(runs["many"], InitialWeights, [0])[0]
    for name in ("resumed", "reload", "reload_original"):
        change(runs[name], InitialWeights, parameters=initial.parameters, parameter_hash=initial.parameter_hash)


def state_of_scaler_forgotten(runs):
    for name, scale in (("many", 512.0), ("resumed", 65536.0)):
        state = StateBeforeStep("GradScaler 0", {"scale": scale, "growth_factor": 2.0})
        insert(runs[name], [0, 1], OptimizerStep, state, number=2 if name == "many" else 0)


def average_forgotten_on_rank_0(runs):
    for name, norm in (("many", 1.5), ("resumed", 1.25)):
        insert(runs[name], [0], OutputLine, EvaluatedModel("Net", [[norm, 0.5]]), number=1 if name == "many" else 0)


def counter_forgotten(runs):
    """After the resumed epoch the file says that it is the first one; times and folders are those of each run."""
    for name, values in (("many", (1, 2)), ("reference", (1, 2)), ("resumed", (1,))):
        for event, epoch in zip(events_of(runs[name], FileSave), values):
            spoil(event, values={"epoch": epoch, "seconds": len(name), "folder": name, "model/fc.bias": [0.5, 0.25]})


def best_file_overwritten(runs):
    insert(runs["many"], [0], OptimizerStep, FileSave("runs/best.pt", {}), number=2)
    insert(runs["resumed"], [0], ProcessExit, FileSave("runs/best.pt", {}))


def file_not_written(runs):
    for name in ("many", "reference"):
        insert(runs[name], [0], ProcessExit, FileSave("runs/averaged.pt", {}))


def curve_begins_again(runs):
    change(runs["resumed"], LoggedScalar, axis=2)


def figure_of_another_state(runs):
    change(runs["resumed"], LoggedScalar, value=0.75)


def already_done(runs):
    """The resumed script believes that it has ended."""
    for kind in (OptimizerStep, BackwardCall, BatchDrawn, IterationStart, IterationEnd, EpochOrder, InitialWeights):
        remove(runs["resumed"], kind)


def writer_on_rank_0_used_by_all(runs):
    keep_resume_out(runs)
    cut(runs["many"], 1, ProcessExit, 0, 1, ("AttributeError", "'NoneType' object has no attribute 'add_scalar'"))


def flag_refused(runs):
    keep_resume_out(runs)
    for rank in (0, 1):
        cut(runs["many"], rank, ParserUse, 0, 2, ("SystemExit", "2"))
        runs["many"].logs[rank] = "usage: train.py\ntrain.py: error: unrecognized arguments: --local-rank=0"


def port_taken(runs):
    keep_resume_out(runs)
    message = "The server socket has failed to listen: EADDRINUSE: address already in use"
    cut(runs["many"], 0, GroupJoin, 0, 1, ("DistNetworkError", message))
    cut(runs["many"], 1, GroupJoin, 0, 1, ("DistStoreError", "Timed out waiting for clients; socket timeout"))


def fails_on_one_process_too(runs):
    fails_on_one_process_since_the_change(runs)
    del runs["original"]


def fails_on_one_process_since_the_change(runs):
    """The same error on both, but the original is fine: the change is at fault."""
    keep_resume_out(runs)
    del runs["reference"]
    for rank in (0, 1):
        cut(runs["many"], rank, IterationStart, 0, 1, ("FileNotFoundError", "No such file or directory: 'data'"))
    cut(runs["one"], 0, IterationStart, 0, 1, ("FileNotFoundError", "No such file or directory: 'data'"))


def original_fails(runs):
    cut(runs["original"], 0, BackwardCall, 1, 1, ("ValueError", "bad target"))


def killed(runs):
    keep_resume_out(runs)
    cut(runs["many"], 1, BatchDrawn, 1, -9)
    cut(runs["many"], 0, OptimizerStep, 1, None)


def another_loss_after_the_change(runs):
    change(runs["one"], OptimizerStep, having={"number": 2}, losses=[0.4])


def another_loss_of_a_loose_operator(runs):
    another_loss_after_the_change(runs)
    for name in ("one", "original"):
        insert(runs[name], [0], BackwardCall, NondeterministicOperator(op="scatter_add"))


def other_samples_after_the_change(runs):
    redraw(runs["one"], lambda rank, epoch: order_of_epoch(epoch, "new"))


OF_UNEVEN = {"completes": "RF106", "collectives": "RF106", "shards": None}

FAULTS = [
    (one_spelling, {"launch": "RF601"}),
    (own_port, {"launch": "RF602"}),
    (no_group, {"launch": None, "shards": "RF103"}),
    (metric_per_rank, {"metrics": "RF401"}),
    (padded_metric, {"evaluation": "RF111", "metrics": "RF111"}),
    (padded_metric_of_own_share, {"evaluation": "RF111", "metrics": "RF401"}),
    (padding_that_no_figure_shows, {"evaluation": "RF111"}),
    (figures_too_coarse_for_the_padding, {"evaluation": "RF111"}),
    (collective_on_rank_0, dict.fromkeys(("completes", "collectives"), "RF402")),
    (barrier_of_rank_0_at_the_end, dict.fromkeys(("completes", "collectives"), "RF402")),
    (uneven_batches, OF_UNEVEN),
    (uneven_batches_and_schedules, {**OF_UNEVEN, "lr": "RF106", "ranks_agree": "RF106"}),
    (uneven_batches_not_reached, {"collectives": "RF106"}),
    (every_rank_saves, {"single_writer": "RF501"}),
    (every_rank_saves_its_own, {"single_writer": "RF501"}),
    (prefix_saved, {"checkpoint": "RF502"}),
    (whole_wrapper_saved, {"checkpoint": "RF502"}),
    (prefix_refused, dict.fromkeys(("checkpoint", "completes"), "RF502")),
    (no_map_location, {"devices": "RF503"}),
    (one_gpu_for_all, {"devices": "RF604"}),
    (setup_race, {"completes": "RF504"}),
    (writers_race, {"completes": "RF505"}),
    (prepared_by_all, {"single_writer": "RF504"}),
    (race_next_to_checkpoint, {"single_writer": "RF501"}),
    (tensorboard_on_every_rank, {"single_writer": "RF505"}),
    (scalars_on_every_rank, {"single_writer": "RF505"}),
    (log_file_on_every_rank, {"single_writer": "RF505"}),
    (table_of_every_rank, {"single_writer": "RF501"}),
    (table_for_every_rank, {"single_writer": "RF505"}),
    (axis_per_rank, {"logs": "RF506"}),
    (scheduler_forgotten, {"resume": "RF507"}),
    (position_forgotten, {"resume": "RF507"}),
    (momentum_forgotten, {"resume": "RF507"}),
    (buffers_forgotten, {"resume": "RF507"}),
    (nothing_loaded, {"resume": "RF507", "checkpoint": "RF507"}),
    (already_done, {"resume": "RF507"}),
    (state_of_scaler_forgotten, {"resume": "RF507"}),
    (average_forgotten_on_rank_0, {"resume": "RF507"}),
    (counter_forgotten, {"resume": "RF507"}),
    (best_file_overwritten, {"resume": "RF507"}),
    (file_not_written, {"resume": "RF507"}),
    (curve_begins_again, {"resume": "RF506"}),
    (figure_of_another_state, {"resume": "RF507"}),
    (writer_on_rank_0_used_by_all, {"completes": "RF603"}),
    (flag_refused, {"completes": "RF601"}),
    (port_taken, {"completes": "RF602"}),
    (fails_on_one_process_too, {"completes": "RF001"}),
    (fails_on_one_process_since_the_change, {"completes": None}),
    (original_fails, {"completes": "RF001"}),
    (killed, {"completes": None}),
    (another_loss_after_the_change, {"original": None}),
    (another_loss_of_a_loose_operator, {"original": "RF002"}),
    (other_samples_after_the_change, {"original": None}),
]


@pytest.mark.parametrize(("spoil", "expected"), FAULTS, ids=[spoil.__name__ for spoil, _ in FAULTS])
def test_a_fault_around_the_training_fails_its_own_check(spoil, expected):
    runs = sound_runs()
    spoil(runs)
    assert failures(run_checks(runs)) == expected
    assert set(filter(None, expected.values())) <= set(CATALOG)


TEXTS = [
    (
        collective_on_rank_0,
        "collectives",
        "rank 0 waits in broadcast_ #2 (7 float64) at train.py:120 in evaluate; rank 1 waits in allreduce_ #2",
    ),
    (uneven_batches, "collectives", "rank 0 calls allreduce_ #1 (12 float64, in backward); rank 1 has ended"),
    (setup_race, "completes", "EOFError: Ran out of input at train.py:12 in main"),
    (killed, "completes", "rank 1 was killed by SIGKILL"),
    (metric_per_rank, "metrics", "0.750 with 2 processes, 0.812 with 1"),
    (axis_per_rank, "logs", "point 0 of val/accuracy at 4 with 2 processes, at 2 with 1"),
    (prefix_saved, "checkpoint", "key 'model/module.fc.weight' in 4 keys"),
    (scheduler_forgotten, "resume", "0.05 and 0.1"),
    (state_of_scaler_forgotten, "resume", "512 without the stop, 65536 after it"),
    (counter_forgotten, "resume", "epoch: 2 without the stop, 1 after it"),
    (curve_begins_again, "resume", "at 4 without the stop, at 2 after it"),
    (own_port, "launch", "port 12355, the launcher gave 29501"),
    (another_loss_after_the_change, "original", "loss 0.3333333333333333 before the change, 0.4 after it"),
]


@pytest.mark.parametrize(("spoil", "check", "value"), TEXTS, ids=[row[0].__name__ for row in TEXTS])
def test_a_finding_shows_its_values(spoil, check, value):
    runs = sound_runs()
    spoil(runs)
    verdict = next(verdict for verdict in run_checks(runs) if verdict.check == check)
    assert value in verdict.value


def test_uneven_batches_of_a_stream_are_found_in_an_epoch_before_the_last():
    """Rank 1 begins the second epoch while rank 0 has a batch left, whose gradients are averaged with those."""
    many = sound_runs()["many"]
    for number in (0, 2):
        remove(many, EpochOrder, iteration=number)
    remove(many, BatchDrawn, [1], iteration=0, number=1)
    assert collectives.uneven_batches(many) == "the ranks have 2, 1 training batches in epoch 0"


@pytest.mark.parametrize(
    ("ours", "theirs", "cause"),
    [
        ("test accuracy: 3/6 (50%)", "test accuracy: 5/6 (83%)", "RF401"),
        ("3 correct", "5 correct", None),  # the words before a number say what it is
        ("correct 3 of 3", "correct 6 of 6", "RF401"),
        ("top-1 accuracy 83", "top-1 accuracy 84", None),  # it may be rounded
        ("evaluated 3 samples in 3 batches", "evaluated 6 samples in 6 batches", None),
    ],
)
def test_whole_numbers_are_compared_where_they_are_figures(ours, theirs, cause):
    runs = sound_runs()
    for name, text in (("many", ours), ("reference", theirs)):
        insert(runs[name], [0], LoggedScalar, OutputLine(text=text, stream="stdout"))
    assert failures(run_checks(runs)).get("metrics") == cause


def test_the_samples_of_another_rank_explain_a_loss_after_a_resume():
    """BatchNorm is over all ranks, so that the loss of rank 0 is another one with the same samples of its own."""
    runs = sound_runs()
    redraw(runs["resumed"], lambda rank, epoch: order_of_epoch(0 if rank else 1)[rank::2])
    change(runs["resumed"], OptimizerStep, losses=lambda event: [event.losses[0] + 0.01])
    verdict = next(verdict for verdict in run_checks(runs) if verdict.check == "resume")
    assert "other samples follow" in verdict.summary and "rank 1" in verdict.summary


LISTED = frozenset({"train.py:30"})


@pytest.mark.parametrize(
    ("number", "options", "is_fault"),
    [
        ("0.730", CheckOptions(uses_runtime=True), True),  # in a line of progress, and not in the list of `convert`
        ("0.730", CheckOptions(uses_runtime=True, listed_figures=frozenset({"train.py:31"})), True),
        ("0.730", CheckOptions(uses_runtime=True, listed_figures=LISTED), False),
        ("0.730", CheckOptions(), False),  # plain scripts print their own losses: it is listed after the PASS
        ("0.701", CheckOptions(uses_runtime=True), False),  # the last digit is rounded
        ("1.400", CheckOptions(), False),  # twice, but once only
    ],
)
def test_a_figure_of_one_rank_in_a_line_of_progress(number, options, is_fault):
    runs = sound_runs()
    place = "train.py:30 in train"
    for name, text in (("many", f"loss {number}"), ("reference", "loss 0.700")):
        insert(runs[name], [0], OptimizerStep, OutputLine(text=text, stream="stdout", where=place))
    assert failures(run_checks(runs, options)) == ({"metrics": "RF401"} if is_fault else {})
    assert [*own_figures(runs, 1e-8)] == (
        [] if number == "0.701" else [f"the printed loss at {place}: {number} with 2 processes, 0.700 with 1"]
    )


def test_lines_are_compared_by_their_words_and_steps():
    """Neither the width of a number nor a line that one run prints more often shifts what is compared."""
    runs = sound_runs()
    for name, texts in (("many", ["note 0.1", "seen   8/12 loss 0.700"]), ("reference", ["seen 16/12 loss 0.700"])):
        for text in texts:
            insert(runs[name], [0], OptimizerStep, OutputLine(text=text, stream="stdout"), number=1)
    assert [*own_figures(runs, 1e-8)] == [] and failures(run_checks(runs, CheckOptions(uses_runtime=True))) == {}


@pytest.mark.parametrize("times", [2, 3])
def test_last_digits_that_differ_often_are_not_rounded(times):
    runs = sound_runs()
    for name, text in (("many", "p 0.50"), ("reference", "p 0.51")):
        for number in range(times):
            insert(runs[name], [0], OptimizerStep, OutputLine(text=text, stream="stdout"), number=number)
    found = failures(run_checks(runs, CheckOptions(uses_runtime=True)))
    assert found == ({"metrics": "RF401"} if times == 3 else {})
