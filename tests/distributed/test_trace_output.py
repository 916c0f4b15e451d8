"""What the trace sees of printed lines, logged curves and argument parsers, and that all of them work as before."""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.util
import inspect
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tqdm import tqdm

from retrofit.verify.trace.after_import import after_import, after_import_of
from retrofit.verify.trace.events import LoggedScalar, OutputLine, ParserOption, event_of, line_of
from retrofit.verify.trace.output.lines import MOST_CHARACTERS, RecordedStream
from retrofit.verify.trace.output.parser import install_parser
from retrofit.verify.trace.output.scalars import install_scalars

ROOT = Path(__file__).resolve().parents[2]


class Recorded:
    def __init__(self):
        self.events = []

    def __call__(self, event):
        assert event_of(line_of(event, 0.0, 0)) == event
        self.events.append(event)

    def lines(self):
        return [event.text for event in self.events if isinstance(event, OutputLine)]


@pytest.fixture
def record():
    return Recorded()


@pytest.fixture
def stream(record):
    return RecordedStream(io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline=""), "stdout", record, "nowhere")


def content(stream):
    stream.flush()
    return stream.buffer.getvalue().decode()


class TestLines:
    def test_whole_lines_are_recorded_and_all_is_passed_on(self, stream, record):
        print("one", 1, file=stream)
        print("two\nthree", end="", file=stream)
        stream.writelines([" parts", "\n", "four\n"])
        assert content(stream) == "one 1\ntwo\nthree parts\nfour\n"
        assert record.events[0] == OutputLine("one 1", "stdout")
        assert record.lines() == ["one 1", "two", "three parts", "four"]

    def test_blank_and_unfinished_lines_are_not_recorded(self, stream, record):
        print("\n  \nbegun", end="", file=stream)
        assert record.lines() == []

    def test_long_lines_are_cut(self, stream, record):
        print("x" * 2000, file=stream)
        for _ in range(2000):
            stream.write("y")
        stream.write("\n" + "z" * 2000 + "\n")
        assert record.lines() == [letter * MOST_CHARACTERS for letter in "xyz"]
        assert content(stream) == "".join(letter * 2000 + "\n" for letter in "xyz")

    def test_progress_bars_are_not_recorded(self, stream, record):
        for number in tqdm(range(300), file=stream, mininterval=0):
            if number == 150:
                stream.write("\n")
        stream.write("bar" * 1000)
        stream.write("\rbar")
        print(file=stream)
        print("after", file=stream)
        assert record.lines() == ["after"]

    def test_a_recorded_stream_behaves_like_the_original(self, stream):
        assert stream.encoding == "utf-8" and not stream.isatty() and stream.writable()
        stream.reconfigure(encoding="latin-1")
        assert stream.write("é") == 1
        stream.flush()
        assert stream.buffer.getvalue() == b"\xe9"
        with pytest.raises(TypeError):
            stream.write(b"bytes")
        with pytest.raises(AttributeError, match="nothing"):
            _ = stream.nothing
        with stream as inside:
            assert inside is stream
        assert stream.closed

    def test_a_file_descriptor(self, record, tmp_path):
        with open(tmp_path / "out.txt", "w") as file:
            stream = RecordedStream(file, "stderr", record, "nowhere")
            assert stream.fileno() == file.fileno()
            subprocess.run(["echo", "child"], stdout=stream, check=True)
            print("parent", file=stream)
        assert sorted((tmp_path / "out.txt").read_text().split()) == ["child", "parent"]
        assert record.events == [OutputLine("parent", "stderr")]


@pytest.fixture
def parsers(record, monkeypatch):
    for name in ("parse_known_args", "parse_args"):
        monkeypatch.setattr(argparse.ArgumentParser, name, getattr(argparse.ArgumentParser, name))
    install_parser(record)
    return record


class TestParsers:
    def test_the_options(self, parsers):
        parser = argparse.ArgumentParser()
        parser.add_argument("data", help="folder")
        parser.add_argument("-b", "--batchsize", type=int, default=8)
        parser.add_argument("--amp", action="store_true", help=argparse.SUPPRESS)
        parser.add_argument("--resume", nargs="?", const="auto", help="checkpoint, or auto")
        parser.add_argument("--task", choices=("train", "test"))
        args = parser.parse_args(["x", "-b", "4"])
        assert args == argparse.Namespace(data="x", batchsize=4, amp=False, resume=None, task=None)
        (use,) = parsers.events
        options = {option.dest: option for option in use.options}
        assert options["help"].flags == ["-h", "--help"] and not options["help"].takes_value
        assert options["data"] == ParserOption([], "data", takes_value=True, help="folder", choices=None)
        assert options["batchsize"].flags == ["-b", "--batchsize"] and options["batchsize"].takes_value
        assert not options["amp"].takes_value and options["amp"].help == ""
        assert options["resume"].takes_value and options["resume"].help == "checkpoint, or auto"
        assert options["task"].choices == ["train", "test"]

    @pytest.mark.parametrize("flags", [[], ["--local_rank"], ["--local-rank"], ["--local_rank", "--local-rank"]])
    def test_the_launchers_flag(self, parsers, flags):
        parser = argparse.ArgumentParser()
        if flags:
            parser.add_argument(*flags, type=int)
        parser.parse_args([])
        expected = {flag: flag in flags for flag in ("--local_rank", "--local-rank")}
        assert parsers.events[0].accepts_local_rank == expected

    def test_each_parser_once(self, parsers):
        first, second = argparse.ArgumentParser(), argparse.ArgumentParser()
        first.add_argument("--config")
        second.add_argument("--lr", type=float)
        assert first.parse_known_args(["--config", "a", "--lr", "1"])[1] == ["--lr", "1"]
        for _ in range(3):
            assert second.parse_args(["--lr", "1"]).lr == 1
        found = [([option.dest for option in event.options], event.refuses_unknown) for event in parsers.events]
        assert found == [(["help", "config"], False), (["help", "lr"], True)]

    def test_sub_commands(self, parsers):
        parser = argparse.ArgumentParser()
        parser.add_subparsers(dest="command").add_parser("train").add_argument("--epochs", type=int)
        assert parser.parse_args(["train", "--epochs", "2"]).epochs == 2
        assert parsers.events[0].options[1].choices == ["train"]
        assert parsers.events[1].options[1].flags == ["--epochs"]

    def test_a_refused_argument_exits_as_before_and_is_recorded(self, parsers, capsys):
        with pytest.raises(SystemExit) as error:
            argparse.ArgumentParser(prog="train.py").parse_args(["--local_rank=0"])
        assert error.value.code == 2
        assert "train.py: error: unrecognized arguments: --local_rank=0" in capsys.readouterr().err
        assert len(parsers.events) == 1

    def test_choices_without_a_list(self, parsers):
        class Even:
            def __contains__(self, value):
                return value % 2 == 0

        parser = argparse.ArgumentParser()
        parser.add_argument("--even", type=int, choices=Even(), metavar="E")
        parser.add_argument("--any", type=int, choices=range(10**12), metavar="A")
        assert parser.parse_args(["--even", "2", "--any", "5"]).any == 5
        choices = [option.choices for option in parsers.events[0].options[1:]]
        assert choices[0] is None and len(choices[1]) == 100


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder for packages that can be imported."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


class TestAfterImport:
    def test_a_module_is_changed_when_it_is_imported_and_only_then(self, packages):
        (packages / "outer").mkdir()
        (packages / "outer" / "__init__.py").write_text("from .inner import value\n")
        (packages / "outer" / "inner.py").write_text("value = 1\n")
        finders, changed = list(sys.meta_path), []

        def change(module):
            module.value = 2
            changed.append(module.__name__)

        after_import("outer.inner", change)
        assert changed == []
        outer = importlib.import_module("outer")
        assert (outer.value, changed) == (2, ["outer.inner"])
        assert sys.meta_path == finders
        assert inspect.getsource(sys.modules["outer.inner"]) == "value = 1\n"
        assert "exec_module" not in vars(sys.modules["outer.inner"].__loader__)

    def test_an_imported_module_is_changed_at_once(self):
        changed = []
        after_import("json", changed.append)
        assert changed == [json]

    def test_a_missing_module_stays_missing(self, packages):
        after_import("no_such_module", lambda module: None)
        with pytest.raises(ModuleNotFoundError, match="no_such_module"):
            importlib.import_module("no_such_module")

    def test_a_module_may_be_executed_twice(self, packages):
        (packages / "twice.py").write_text("value = 1\n")
        changed = []
        after_import("twice", changed.append)
        spec = importlib.util.find_spec("twice")
        module, execute = importlib.util.module_from_spec(spec), spec.loader.exec_module
        execute(module)
        execute(module)
        assert module.value == 1 and changed == [module, module]

    def test_a_finder_of_the_script_may_ask_all_others(self, packages):
        class OfScript(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path, target=None):
                others = (finder for finder in sys.meta_path if finder is not self)
                return next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)

        (packages / "asked.py").write_text("value = 1\n")
        changed = []
        after_import("asked", changed.append)
        after_import_of(lambda path: path.endswith("asked.py"), changed.append)
        sys.meta_path.insert(1, OfScript())
        asked = importlib.import_module("asked")
        assert asked.value == 1 and set(map(id, changed)) == {id(asked)}

    def test_a_module_that_fails_is_changed_when_it_succeeds(self, packages):
        (packages / "fragile.py").write_text("raise ValueError('not yet')\n")
        changed = []
        after_import("fragile", changed.append)
        with pytest.raises(ValueError, match="not yet"):
            importlib.import_module("fragile")
        (packages / "fragile.py").write_text("value = 1  # now\n")
        importlib.invalidate_caches()
        assert importlib.import_module("fragile").value == 1
        assert len(changed) == 1

    def test_another_module_of_the_name_is_left_alone(self, packages, record):
        (packages / "wandb.py").write_text("mine = True\n")
        sys.modules.pop("wandb", None)
        install_scalars(record, str(Path.cwd()))
        assert importlib.import_module("wandb").mine


WANDB = """
import functools
run = log = None
class Run:
    @staticmethod
    def log(data, step=None, commit=True):
        history.append((data, step, commit))
    log = functools.wraps(log)(lambda self, *args, real=log.__func__, **kwargs: real(*args, **kwargs))
history = []
def init(mode=None):
    global run, log
    run = run or Run()
    if mode == "disabled":
        run.log = lambda data, *rest, **named: None
    log = run.log
    return run
"""


def scalars_of(record):
    return [(event.name, event.value, event.axis) for event in record.events if isinstance(event, LoggedScalar)]


@pytest.mark.parametrize("mode", [None, "disabled"])
def test_wandb(packages, record, mode):
    (packages / "wandb.py").write_text(WANDB)
    sys.modules.pop("wandb", None)
    install_scalars(record, str(Path.cwd()))
    wandb = importlib.import_module("wandb")
    run = wandb.init(mode=mode)
    assert wandb.init() is run
    wandb.log({"loss": torch.tensor(0.5), "val": {"acc": 1}, "note": "text", "image": object()}, step=3)
    run.log(data={"lr": 0.1}, commit=False)
    assert scalars_of(record) == [("loss", 0.5, 3), ("val/acc", 1.0, 3), ("lr", 0.1, None)]
    assert mode or wandb.history[1] == ({"lr": 0.1}, None, False)


def test_a_run_of_wandb_that_a_rank_disables_does_not_count(packages, record, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    (packages / "wandb.py").write_text(WANDB)
    sys.modules.pop("wandb", None)
    install_scalars(record, str(Path.cwd()))
    wandb = importlib.import_module("wandb")
    wandb.init(mode="disabled").log({"loss": 0.5})
    assert scalars_of(record) == []


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from retrofit.verify.trace.output.lines import install_output
from retrofit.verify.trace.recorder import Recorder
assert "tensorboardX" not in sys.modules
recorder = Recorder(Path("rank0.jsonl"))
install_output(recorder.record, ".")
assert "tensorboardX" not in sys.modules and "torch.utils.tensorboard" not in sys.modules
import logging, torch, numpy
logging.basicConfig(level="INFO")
from tensorboardX import SummaryWriter
import torch.utils.tensorboard
for name, writer in (("x", SummaryWriter("x")), ("torch", torch.utils.tensorboard.SummaryWriter("torch"))):
    writer.add_scalar(f"{name}/loss", torch.tensor(0.5, requires_grad=True), 3)
    writer.add_scalar(tag=f"{name}/acc", scalar_value=numpy.float32(0.25), global_step=None)
    writer.add_scalars(f"{name}/both", {"a": 1, "b": float("nan")}, 4)
    writer.close()
print("done")
print("warned", file=sys.stderr)
logging.info("logged")
sys.exit(3)
"""


def test_a_program_with_both_tensorboards(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(ROOT)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 3, done.stderr
    assert done.stdout == "done\n"
    events = [event_of(line) for line in (tmp_path / "rank0.jsonl").read_text().splitlines()]
    found = [(event.name, str(event.value), event.axis) for event in events if isinstance(event, LoggedScalar)]
    for name in ("x", "torch"):
        assert found[:4] == [
            (f"{name}/loss", "0.5", 3),
            (f"{name}/acc", "0.25", None),
            (f"{name}/both/a", "1.0", 4),
            (f"{name}/both/b", "nan", 4),
        ]
        del found[:4]
        assert list((tmp_path / name).rglob("events.out.tfevents.*"))
    lines = [(event.stream, event.text) for event in events if isinstance(event, OutputLine)]
    assert [line for line in lines if line[1] in ("done", "warned", "INFO:root:logged")] == [
        ("stdout", "done"),
        ("stderr", "warned"),
        ("stderr", "INFO:root:logged"),
    ]


def test_a_line_knows_where_it_is_printed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def report(stream):\n    print('loss 1.0', file=stream)\n")
    (tmp_path / "multigpu.py").write_text('RETROFIT_RUNTIME = "1"\n\ndef print_main(*a, **k):\n    print(*a, **k)\n')
    space: dict[str, object] = {}
    exec(compile((tmp_path / "train.py").read_text(), str(tmp_path / "train.py"), "exec"), space)
    runtime: dict[str, object] = {}
    exec(compile((tmp_path / "multigpu.py").read_text(), str(tmp_path / "multigpu.py"), "exec"), runtime)
    found: list[str | None] = []
    stream = RecordedStream(io.StringIO(), "stdout", lambda event: found.append(event.where), str(tmp_path))
    space["report"](stream)  # type: ignore[operator]
    space["print"] = runtime["print_main"]
    space["report"](stream)  # type: ignore[operator]
    print("of another file", file=stream)
    assert found == ["train.py:2 in report"] * 2 + [None]
