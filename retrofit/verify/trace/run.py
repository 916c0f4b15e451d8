"""Run a script as `__main__` with hooks on loaders, optimizers, operators, files and output.

What the hooks see is written to one file per rank.
"""

from __future__ import annotations

import functools
import os
import random
import runpy
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import torch

from retrofit.distributed.data.random_state import mix_seed, seed_everything
from retrofit.verify.trace.computation.batchnorm import install_batchnorm
from retrofit.verify.trace.computation.collectives import install_groups, install_join, install_new_groups
from retrofit.verify.trace.computation.coupling import paired_rows
from retrofit.verify.trace.computation.models import ModelTrace
from retrofit.verify.trace.computation.nondeterministic import record_nondeterministic
from retrofit.verify.trace.computation.numbers.float64 import use_float64
from retrofit.verify.trace.computation.numbers.steady import SteadyInputs
from retrofit.verify.trace.computation.operators import OperatorTrace, untraced
from retrofit.verify.trace.computation.spawned import SpawnedRanks
from retrofit.verify.trace.computation.states import StateTrace
from retrofit.verify.trace.computation.steps.clipping import record_clipping
from retrofit.verify.trace.computation.steps.step_trace import StepTrace
from retrofit.verify.trace.computation.steps.unsynced import UnsyncedForwards
from retrofit.verify.trace.data.gathered import install_gathered
from retrofit.verify.trace.data.loaders import LoaderTrace
from retrofit.verify.trace.data.own_batches import OwnBatches
from retrofit.verify.trace.filesystem.files import install_files
from retrofit.verify.trace.filesystem.reads import install_reads
from retrofit.verify.trace.filesystem.snapshot import snapshot_of_ranks
from retrofit.verify.trace.output.decisions import record_decisions, record_plateau
from retrofit.verify.trace.output.lines import COLOUR, install_output
from retrofit.verify.trace.output.watched_lines import watch_lines
from retrofit.verify.trace.randomness.clock import LATER_S, shift_clock
from retrofit.verify.trace.randomness.numpy_draws import install_numpy_draws
from retrofit.verify.trace.randomness.own_generators import install_own_generators
from retrofit.verify.trace.randomness.rounding import RandomRounding
from retrofit.verify.trace.randomness.rows.batch_rows import BatchRows
from retrofit.verify.trace.randomness.single_numbers import install_single_numbers
from retrofit.verify.trace.randomness.streams import (
    OTHER_LIBRARIES,
    Streams,
    in_main_thread,
    install_new_weights,
    seed_library,
)

from .after_import import after_import
from .events import BatchPart, ProcessExit, ProcessStart, ScriptError
from .recorder import Recorder, is_of_tracer, own_errors_recorded
from .runtime import is_in_runtime
from .settings import TraceSettings


def run_traced(settings: TraceSettings, script: str, argv: Sequence[str]) -> None:
    """Run `script` (a path inside `settings.project`) with `argv` as a program of its own, traced.

    It is run as `settings.module` where that is given. Ends as the script does: returns, or raises what it raises
    (SystemExit too). For a process of its own: the hooks cannot be taken back.
    """
    recorder = Recorder(Path(settings.folder) / f"rank{settings.rank}.jsonl")
    path = str(Path(settings.project) / script)
    place = functools.partial(_place_of_caller, settings.project)
    models, steps = _install(recorder, settings, place)
    spawned = SpawnedRanks(recorder.record, settings, place, models.forget)
    spawned.install()
    if settings.decisions:
        record_decisions(recorder.record, settings, path)
    sys.argv = [path, *argv]
    sys.path[0] = settings.project if settings.module else str(Path(path).parent)
    try:
        if settings.spawns and settings.rank > 0:
            spawned.serve(path)
        elif settings.module:
            runpy.run_module(settings.module, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(path, run_name="__main__")
    except BaseException as error:
        if is_of_tracer(error):
            recorder.record_failure(error)
        steps.by_hand.close()
        recorder.record(ProcessExit(_status(error), _describe(error, settings.project)))
        raise
    else:
        steps.by_hand.close()
        recorder.record(ProcessExit(0, None))
    finally:
        spawned.end()


def _install(
    recorder: Recorder, settings: TraceSettings, place: Callable[[], str | None]
) -> tuple[ModelTrace, StepTrace]:
    _seed(settings)
    shift_clock(LATER_S * settings.rank)
    threads, cuda = torch.get_num_threads(), torch.cuda.is_available()
    recorder.record(ProcessStart(settings.rank, settings.world_size, torch.__version__, cuda, threads))
    install_output(recorder.record, settings.project)
    files = install_files(recorder.record, settings.project, [settings.folder])
    if settings.controlled and settings.world_size > 1:
        install_reads(recorder.record, files, settings.project)
    install_groups(recorder.record)
    install_new_groups(recorder.record)
    install_join(recorder.record)
    install_gathered(recorder.record)
    rows = BatchRows()
    pairs = paired_rows(recorder.record)
    rows.on_mixed = lambda mixing: pairs(mixing.op, mixing.rows, False, mixing.where)
    streams = Streams(settings.seed, rows.leave, settings.own_draws)
    rows.is_loading = streams.is_loading
    models = ModelTrace(rows.on_forward)
    models.on_inputs = rows.on_inputs
    operators = OperatorTrace(recorder.record, settings.controlled, rows, rows.following, rows.keys)
    operators.widens = not settings.as_is
    operators.rounding = RandomRounding(settings.rounding)
    steady = SteadyInputs(recorder, rows.holds)
    operators.inputs = steady.watched if settings.controlled else operators.inputs
    # By a draw of its own a rank may leave a layer out: the others must not wait for it.
    install_batchnorm(recorder.record, settings.controlled and not settings.own_draws, rows)
    record_nondeterministic(recorder.record)
    torch.use_deterministic_algorithms(True, warn_only=True)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS has no deterministic mode

    def on_batch(batch: Any, seeds: list[int], is_own: bool = False, parts: Any = None, place: Any = None) -> None:
        rows.add(batch, seeds, is_own, parts, place)
        if in_main_thread():
            operators.new_batch()
        if place is None and not steady.is_begun:
            steady.begin()  # batches of the script's own are of one pass
        elif place is not None and place[1] == 0:
            steady.begin()

    def on_backward() -> None:
        part = rows.part() if settings.controlled else None
        if part is not None:
            (iteration, number), places = part
            recorder.record(BatchPart(iteration, number, places))
        rows.on_backward()
        with own_errors_recorded(), untraced():
            steady.on_backward()

    def on_second_epoch() -> None:
        if settings.snapshot:
            with own_errors_recorded():
                folders = Path(settings.project), Path(settings.snapshot)
                snapshot_of_ranks(*folders, settings.rank, settings.world_size)

    loaders = LoaderTrace(recorder, settings, streams, on_batch, on_second_epoch, models.is_evaluating)
    loaders.on_collate = rows.hold
    steps = StepTrace(recorder, models, loaders, settings.stop_before_first_step)
    steps.on_backward = on_backward
    averaged_in = getattr(torch, settings.averaged_in) if settings.averaged_in else None
    steps.on_gradient = functools.partial(operators.rounding.disturb, precision=averaged_in) if averaged_in else None
    operators.writes = steps.by_hand.watched
    models.before_call = loaders.before_batch = steps.by_hand.close
    states = StateTrace(recorder, steps.trained, lambda: models.models)
    steps.on_step = states.before_step

    def on_call(model: torch.nn.Module) -> None:
        states.on_call(model)
        if settings.world_size > 1:
            steps.changes.before_call(model)

    models.on_call, models.after_call = on_call, steps.changes.after_call
    operators.cuts.is_watched = lambda: models.is_evaluating() and not rows.in_model()
    operators.draws.may_pick, operators.draws.parts = rows.may_pick, rows.parts
    operators.draws.own_state, operators.draws.in_model = streams.own_state, rows.in_model
    operators.draws.in_loop_body = streams.in_loop_body
    install_new_weights(streams, lambda: recorder.step > 0 or rows.in_model())
    models.install()
    loaders.install()
    steps.install()
    if settings.world_size > 1:
        steps.unsynced = UnsyncedForwards(place)
        steps.unsynced.install()
    states.install()
    if settings.controlled:
        OwnBatches(loaders).install()
        install_numpy_draws(operators.draws)
        install_single_numbers(operators.draws)
        install_own_generators(streams, operators.draws)
        record_plateau(recorder.record, settings.project)
        record_clipping(recorder.record)
    if settings.controlled and not settings.as_is:
        use_float64()
    if settings.controlled and settings.as_is:
        OperatorTrace.lets_compile = True
        after_import("torch._inductor.config", _draw_by_operators)
    else:
        _disable_compile()
    # A fork server for loader workers is not needed: they run inside the process. The rest of multiprocessing starts
    # it by itself.
    forkserver.ensure_running = lambda: None  # type: ignore[assignment]
    operators.__enter__()
    watch_lines(recorder.record, settings.project, settings.watched)
    return models, steps


def _draw_by_operators(config: Any) -> None:
    """Let compiled graphs draw random numbers by torch's own operators, which are seen and made comparable."""
    config.fallback_random = True


def _disable_compile() -> None:
    """Run what torch.compile has compiled as it was written: a compiled graph hides its operators and draws."""
    if hasattr(torch.compiler, "set_stance"):  # since torch 2.6; the model keeps its wrapper, and the keys their names
        torch.compiler.set_stance("force_eager")
        return
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    if "torch._dynamo" in sys.modules:  # it has read the variable
        sys.modules["torch._dynamo"].config.disable = True  # type: ignore[attr-defined]


def _seed(settings: TraceSettings) -> None:
    """Seed a script that seeds nothing: rank 0 as the single process is, the others differently, as by nature."""
    seed = settings.seed if settings.rank == 0 else mix_seed(settings.seed, settings.rank)
    random.seed(seed)
    seed_everything(seed)
    for name in OTHER_LIBRARIES:
        after_import(name, functools.partial(seed_library, seed))


def _status(error: BaseException) -> int:
    if not isinstance(error, SystemExit):
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


def _describe(error: BaseException, project: str) -> ScriptError | None:
    """Return what went wrong: of a SystemExit that hides an error (`sys.exit(1)` in a handler), that error."""
    if isinstance(error, SystemExit):
        if _status(error) == 0:
            return None
        error = error.__context__ or error
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    where = _place_in(project, error.__traceback__)
    return ScriptError(type(error).__name__, COLOUR.sub("", str(error))[:2000], where, traceback=text[-6000:])


def _place_in(project: str, trace: types.TracebackType | None) -> str | None:
    """Return the innermost frame in the user's own files, as "train.py:12 in main"."""
    return _innermost(project, traceback.extract_tb(trace))


def _place_of_caller(project: str) -> str | None:
    """Return the innermost line in the user's own files that is being run."""
    return _innermost(project, traceback.extract_stack())


def _innermost(project: str, frames: Iterable[traceback.FrameSummary]) -> str | None:
    place = None
    for frame in frames:
        if not frame.filename.startswith(project + os.sep):
            continue
        path = os.path.relpath(frame.filename, project)
        if not is_in_runtime(path, project):
            place = f"{path}:{frame.lineno} in {frame.name}"
    return place
