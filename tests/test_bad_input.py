"""What bad input gets: an error that names the value and the remedy, a failing exit status on every rank, no hang, and
the checkpoints that were there before, byte for byte.

What one process finds is called in this one; the rest are starts of train.py, two at a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from forked_python import ForkedPython
from PIL import Image
from torch.utils.data import RandomSampler

import train
from retrofit.distributed.data.sharding import ShardedSampler
from retrofit.distributed.process.environment import DistributedEnvironment
from retrofit.distributed.process.process_group import gpu_index

ROOT = Path(__file__).resolve().parents[1]
REAL_PYTHON = sys.executable  # what it starts inherits the limit of a file's size
DEADLINE_S = 180.0
PARALLEL = 2
NUM_IMAGES = 10  # every fifth is validation: 8 to train on
TRAIN_IMAGES = [index for index in range(NUM_IMAGES) if index % 5 != 4]
SEED = 1000
TINY = ("--layers", "18", "--crop_size", "32", "--batchsize", "2", "--epochs", "1", "--workers", "0")
DISK_BYTES = 30 * 2**20  # far less than a checkpoint


def make_dataset(root: Path) -> Path:
    """Write ten 32 x 32 images with masks of three classes."""
    random = np.random.default_rng(0)
    (root / "images").mkdir(parents=True)
    (root / "masks").mkdir()
    for index in range(NUM_IMAGES):
        image = random.integers(0, 255, (32, 32, 3), dtype=np.uint8)
        mask = random.integers(0, 3, (32, 32), dtype=np.uint8)
        Image.fromarray(image).save(root / "images" / f"{index:02d}.png")
        Image.fromarray(mask).save(root / "masks" / f"{index:02d}.png")
    return root


def folder_options(root: Path) -> list[str]:
    return ["--dataset", "folder", "--dataset_path", str(root), "--numclasses", "3"]


def truncate(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def image_of_rank(rank: int) -> str:
    """Return the name of the first training image that `rank` of two sees."""
    sampler = ShardedSampler(RandomSampler(range(len(TRAIN_IMAGES))), 2, drop_last=True, seed=SEED)
    sampler.rank, sampler.world_size = rank, 2
    return f"{TRAIN_IMAGES[next(iter(sampler))]:02d}.png"


# ---------------------------------------------------------------------------------------------- errors in this process


def error_of(*argv: str) -> str:
    """Run train.py's main in this process and return the error; one that returns normally fails the test."""
    try:
        status = train.main(list(argv))
    except SystemExit as error:
        assert error.code not in (None, 0)
        return str(error.code)
    except Exception as error:  # the interpreter ends with status 1
        return f"{type(error).__name__}: {error}"
    raise AssertionError(f"bad input was taken, status {status}")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return make_dataset(tmp_path / "data")


@pytest.fixture
def argv(dataset: Path, tmp_path: Path) -> Iterator[list[str]]:
    """Options of a training that would work; the test makes one thing bad. No run's folder may have been made."""
    yield [*TINY, *folder_options(dataset), "--logdir", str(tmp_path / "log")]
    assert not (tmp_path / "log").exists()


def test_missing_dataset_folder(argv: list[str], tmp_path: Path) -> None:
    gone = tmp_path / "nowhere"
    message = error_of(*argv, "--dataset_path", str(gone))
    assert re.search(rf"FileNotFoundError: folder {gone} does not exist; .*--dataset_path", message)


def test_empty_dataset_folder(argv: list[str], dataset: Path) -> None:
    shutil.rmtree(dataset / "images")
    (dataset / "images").mkdir()
    assert re.search(rf"folder {dataset / 'images'} holds no image; put files with", error_of(*argv))


def test_dataset_folder_without_subfolders(argv: list[str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    message = error_of(*argv, "--dataset_path", str(tmp_path / "empty"))
    assert re.search(rf"folder {tmp_path / 'empty' / 'images'} does not exist; the images belong there", message)


def test_image_without_mask(argv: list[str], dataset: Path) -> None:
    (dataset / "masks" / "03.png").unlink()
    message = error_of(*argv)
    assert str(dataset / "images" / "03.png") in message and str(dataset / "masks" / "03.png") in message
    assert "add the mask or remove the image" in message


def test_number_of_classes_not_given_for_a_folder(argv: list[str]) -> None:
    assert "pass --numclasses" in error_of(*argv, "--numclasses", "0")


def test_dataset_smaller_than_one_global_batch(argv: list[str]) -> None:
    message = error_of(*argv, "--accum_steps", "5")
    assert "the training set has 8 samples, fewer than one global batch of 10" in message
    assert "use a smaller batch size" in message


@pytest.mark.parametrize("present", ["RANK", "WORLD_SIZE", "LOCAL_RANK"])
def test_half_set_environment(argv: list[str], monkeypatch: pytest.MonkeyPatch, present: str) -> None:
    monkeypatch.setenv(present, "0")
    message = error_of(*argv)
    assert f"half of a launcher's environment: {present}=0 but no" in message
    assert "torchrun does" in message and f"unset {present}" in message


def test_more_processes_than_gpus() -> None:
    place = DistributedEnvironment(rank=2, local_rank=2, world_size=3, local_world_size=3, launcher="env")
    with pytest.raises(ValueError, match=r"LOCAL_RANK=2 but only 2 visible GPU.*--nproc_per_node=2.*CUDA_VISIBLE"):
        gpu_index(place, 2)


def test_world_size_without_a_launcher(argv: list[str]) -> None:
    assert re.search(
        r"--world_size 2 but no launcher.*torchrun --nproc_per_node=2", error_of(*argv, "--world_size", "2")
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA GPU, so fp16 works")
def test_fp16_without_a_gpu(argv: list[str]) -> None:
    assert re.search(r"--amp fp16 needs a CUDA GPU.*use --amp bf16 or --amp off", error_of(*argv, "--amp", "fp16"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--no_such_flag", "1"], "unrecognized arguments: --no_such_flag 1"),
        (["--warm", "1"], "unrecognized arguments: --warm 1"),
        (["--config", "nowhere.yaml"], "no configuration file at nowhere.yaml; see configs/"),
    ],
)
def test_wrong_flags(argv: list[str], capfd: pytest.CaptureFixture[str], flags: list[str], message: str) -> None:
    assert error_of(*argv, *flags) == "2"
    assert message in capfd.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("warmup_epochs: 1\n", "unknown key 'warmup_epochs'; did you mean warmup_epoch?"),
        ("epochs: [3]\n", "epochs needs one value, got [3]"),
        ("epochs: many\n", "epochs must be a whole number, got 'many'"),
    ],
)
def test_wrong_yaml(
    argv: list[str], capfd: pytest.CaptureFixture[str], tmp_path: Path, text: str, message: str
) -> None:
    config = tmp_path / "wrong.yaml"
    config.write_text(text)
    assert error_of(*argv, "--config", str(config)) == "2"
    error = capfd.readouterr().err
    assert message in error and str(config) in error


@pytest.mark.parametrize("task", ["test", "predict"])
def test_nothing_to_test_or_predict_with(argv: list[str], task: str) -> None:
    assert re.search(r"no run with a checkpoint.*train first, or give --resume PATH", error_of(*argv, "--task", task))


def test_missing_checkpoint(argv: list[str], tmp_path: Path) -> None:
    gone = tmp_path / "gone.pt"
    assert re.search(rf"no checkpoint at {gone}; give a checkpoint", error_of(*argv, "--resume", str(gone)))


class Unsafe:
    """Not weights: unpickling it would make a folder."""

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, ("this_must_not_be_made",)


@pytest.mark.parametrize(("thing", "name"), [(Unsafe(), "mkdir"), (torch.nn.Linear(1, 1), r"torch\.nn\.\S+\.Linear")])
def test_pickle_that_weights_only_refuses(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thing: object, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "unsafe.pt"
    torch.save({"model": thing, "epoch": 1}, path)
    before = digest(path)
    message = error_of(*argv, "--resume", str(path))
    assert re.search(rf"checkpoint {path} is not loaded: .*{name}.*run code; save state_dicts instead", message)
    assert not (tmp_path / "this_must_not_be_made").exists()
    assert digest(path) == before


def test_file_that_is_not_a_checkpoint(argv: list[str], tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save({"conv.weight": torch.zeros(1)}, path)
    assert re.search(rf"checkpoint {path} has no 'model' entry", error_of(*argv, "--resume", str(path)))


def test_checkpoint_of_another_model(argv: list[str], trained: Path) -> None:
    best = trained / "best.pt"
    message = error_of(*argv, "--resume", str(best), "--layers", "34")
    assert re.search(rf"checkpoint {best} is of another model, \d+ difference.*missing .*build the model with", message)


def test_checkpoint_of_another_number_of_classes(argv: list[str], trained: Path) -> None:
    best = trained / "best.pt"
    message = error_of(*argv, "--task", "test", "--resume", str(best), "--numclasses", "4")
    assert re.search(rf"checkpoint {best} is of another model.* \(3, .* there, \(4, ", message)


def test_damaged_checkpoint(argv: list[str], trained: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.pt"
    shutil.copyfile(trained / "best.pt", damaged)
    truncate(damaged)
    assert str(damaged) in error_of(*argv, "--resume", str(damaged))
    damaged.unlink()


def mask_value(name: str) -> Callable[[Path], object]:
    def write(data: Path) -> None:
        Image.fromarray(np.full((32, 32), 7, dtype=np.uint8)).save(data / "masks" / name)

    return write


def mask_size(name: str) -> Callable[[Path], object]:
    def write(data: Path) -> None:
        Image.fromarray(np.zeros((32, 30), dtype=np.uint8)).save(data / "masks" / name)

    return write


UNREADABLE = r"cannot read image {data}/images/%s: .*truncated.*: replace or remove it"
BAD_VALUE = r"mask {data}/masks/%s contains the value 7, but num_classes is 3; raise --numclasses, or correct"
OTHER_SIZE = r"image {data}/images/%s has 32x32 pixels, but its mask {data}/masks/%s has 30x32 .*make them the same"
NOT_FINITE = (
    r"loss is (nan|inf) at step 2 of epoch 2; the last good checkpoint is "
    r"{log}/001_\w+/checkpoint_0001_00000000.pt; use a smaller --lr"
)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: truncate(data / "images" / "02.png"), UNREADABLE % "02.png"),
        (mask_value("06.png"), BAD_VALUE % "06.png"),
        (mask_size("07.png"), OTHER_SIZE % ("07.png", "07.png")),
    ],
    ids=["truncated image", "mask value", "mask of another size"],
)
def test_damaged_data(dataset: Path, tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(dataset)
    found = error_of(*TINY, *folder_options(dataset), "--logdir", str(tmp_path / "log"))
    assert re.search(message.format(data=dataset), found)
    assert not list((tmp_path / "log").glob("*/*.pt"))


def test_loss_that_is_not_finite(dataset: Path, tmp_path: Path, trained: Path) -> None:
    run = tmp_path / "log" / trained.name
    shutil.copytree(trained, run, copy_function=os.link)  # writing into one of them would show in the original
    huge_lr = ("--resume", "auto", "--epochs", "3", "--lr", "1e30")
    found = error_of(*TINY, *folder_options(dataset), "--logdir", str(tmp_path / "log"), *huge_lr)
    assert re.search(NOT_FINITE.format(log=tmp_path / "log"), found)
    assert {path.name: digest(path) for path in run.glob("*.pt")} == {
        path.name: digest(path) for path in trained.glob("*.pt")
    }


# -------------------------------------------------------------------------------------- errors of real starts


@dataclass
class Case:
    """A start of train.py that must fail: what to break in the dataset and what the error must say."""

    messages: tuple[str, ...]  # regular expressions; {data} and {log} are the case's folders
    flags: tuple[str, ...] = ()
    ranks: int = 1  # more: with torchrun
    damage: Callable[[Path], object] = lambda data: None
    continues: bool = False  # a trained run: its checkpoints must survive
    disk_full: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    first: int | None = None  # the rank that must report the error; None: whichever is faster


NAME = {rank: image_of_rank(rank) for rank in (0, 1)}
DISK_FULL = (
    r"could not write checkpoint {log}/001_\w+/checkpoint_0002_00000000.pt: .*MiB free.; make room .* the checkpoints "
    "already written are unchanged"
)

CASES = {
    "truncated image in a worker": Case(
        (UNREADABLE % "02.png", "DataLoader worker process"),
        ("--workers", "1"),
        damage=lambda data: truncate(data / "images" / "02.png"),
    ),
    "disk full": Case((DISK_FULL,), ("--resume", "auto", "--epochs", "2"), continues=True, disk_full=True),
    "port in use": Case(
        (r"port in use: rank 0 cannot listen on localhost:{port} .*set MASTER_PORT",),
        ("--distributed",),
        environment={"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost"},
    ),
    "2 ranks: truncated image of rank 1": Case(
        (UNREADABLE % NAME[1],), ranks=2, first=1, damage=lambda data: truncate(data / "images" / NAME[1])
    ),
    "2 ranks: mask value in a worker of rank 0": Case(
        (BAD_VALUE % NAME[0],), ("--workers", "1"), ranks=2, first=0, damage=mask_value(NAME[0])
    ),
    "2 ranks: truncated validation image of rank 1": Case(
        (UNREADABLE % "09.png",),
        ("--batchsize", "1"),  # of the validation each rank has a batch
        ranks=2,
        first=1,
        damage=lambda data: truncate(data / "images" / "09.png"),
    ),
    "2 ranks: disk full": Case(
        (DISK_FULL,), ("--resume", "auto", "--epochs", "2"), ranks=2, continues=True, disk_full=True
    ),
    "2 ranks: batch not divisible": Case(
        (r"global batch \(3\) is not divisible by world size \(2\); use 2 or 4",),
        ("--batch", "global", "--batchsize", "3"),
        ranks=2,
    ),
}


@dataclass
class Result:
    status: int | None  # None: still running at the deadline
    output: str
    seconds: float
    data: Path
    log: Path
    port: int


class Start:
    """One start of train.py in `folder`, which nothing else uses."""

    def __init__(self, case: Case, folder: Path, trained: Path, port: int) -> None:
        self.data, self.log = make_dataset(folder / "data"), folder / "log"
        self.output, self.port = folder / "output", port
        case.damage(self.data)
        if case.continues:  # hard links: cheap, and writing into one of them would show in the original
            shutil.copytree(trained, self.log / trained.name, copy_function=os.link)
        command = [REAL_PYTHON if case.disk_full else sys.executable]
        if case.ranks > 1:
            command += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={case.ranks}"]
        command += [str(ROOT / "train.py"), *TINY, *folder_options(self.data), "--logdir", str(self.log), *case.flags]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **case.environment}
        environment["MASTER_PORT"] = str(port)
        self.started = time.monotonic()
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
                preexec_fn=fill_disk if case.disk_full else None,
            )

    def result(self) -> Result | None:
        """Return the result if the run has ended or its time is over, else None."""
        seconds = time.monotonic() - self.started
        status = self.process.poll()
        if status is None and seconds < DEADLINE_S:
            return None
        if status is None:
            self.process.send_signal(signal.SIGTERM)  # torchrun takes its ranks with it
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return Result(status, self.output.read_text(errors="replace"), seconds, self.data, self.log, self.port)


def fill_disk() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (DISK_BYTES, DISK_BYTES))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run of one epoch, with its checkpoints; they are still the same when all tests are done."""
    folder = tmp_path_factory.mktemp("trained")
    argv = [*TINY, *folder_options(make_dataset(folder / "data")), "--logdir", str(folder / "log")]
    assert train.main(argv) == 0
    (run,) = (folder / "log").iterdir()
    before = {path: digest(path) for path in run.glob("*.pt")}
    assert {path.name for path in before} == {"best.pt", "checkpoint_0001_00000000.pt"}
    yield run
    after = {path: digest(path) for path in run.glob("*.pt")}
    shutil.rmtree(folder)  # a hundred megabytes
    assert after == before


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, trained: Path, forks: ForkedPython
) -> Iterator[dict[str, Result]]:
    """The results of all cases that were asked for, run two at a time."""
    calls = (getattr(item, "callspec", None) for item in request.session.items)
    cases = [call.params.get("case") for call in calls if call]
    names = {case for case in cases if isinstance(case, str) and case in CASES}
    waiting = [name for name in CASES if name in names]
    running: dict[str, Start] = {}
    finished: dict[str, Result] = {}
    folder = tmp_path_factory.mktemp("bad_input")
    with socket.create_server(("", 0)) as occupied, forks.in_place():
        port = occupied.getsockname()[1]
        while waiting or running:
            while waiting and len(running) < PARALLEL:
                name = waiting.pop(0)
                (folder / name).mkdir()
                running[name] = Start(CASES[name], folder / name, trained, port)
            for name, start in list(running.items()):
                result = start.result()
                if result:
                    finished[name] = result
                    del running[name]
            time.sleep(0.05)
    yield finished
    shutil.rmtree(folder)


FURTHER = ("2 ranks: truncated image of rank 1", "2 ranks: disk full")  # as in a worker, and on one rank


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=pytest.mark.slow) if name in FURTHER else name for name in CASES]
)
def test_failing_start(case: str, results: dict[str, Result], trained: Path) -> None:
    result, expected = results[case], CASES[case]
    assert result.status is not None, f"still running after {DEADLINE_S} s\n{result.output}"
    assert result.status != 0, result.output
    for message in expected.messages:
        pattern = message.format(data=result.data, log=result.log, port=result.port)
        assert re.search(pattern, result.output), f"{pattern}\n{result.output}"
    if expected.ranks > 1:
        check_ranks(result.output, expected)
    elif expected.disk_full:
        assert "Traceback" not in result.output, result.output
    checkpoints = {path.name: digest(path) for path in result.log.glob("*/*.pt")}
    before = {path.name: digest(path) for path in trained.glob("*.pt")} if expected.continues else {}
    assert checkpoints == before, "a checkpoint was written, changed or lost"
    assert not list(result.log.glob("*/.*.tmp")), "a temporary file was left"


def check_ranks(output: str, case: Case) -> None:
    """Check that one rank alone reports the error, in a traceback that ends with it, or in one line that says all."""
    # Before torchrun's own report, which quotes the root cause once more.
    of_ranks = re.findall(r"\[rank (\d)/2\] (.*)", output)
    beginning = "WriteError: " if case.disk_full else "Traceback"
    reporters = {int(rank) for rank, line in of_ranks if line.startswith(beginning)}
    assert len(reporters) == 1, output
    assert case.first is None or reporters == {case.first}, output
    (reporter,) = reporters
    last = [line for rank, line in of_ranks if int(rank) == reporter and line.strip()][-1]
    assert re.search(r"(cannot read|contains the value|could not write|not divisible)", last), output
    others = [line for rank, line in of_ranks if int(rank) != reporter and line.strip()]
    # At most one line: torchrun ends the others, perhaps before they could say anything.
    assert len(others) <= 1 and all("failed first, see its message" in line for line in others), output


def test_no_process_is_left_running(results: dict[str, Result]) -> None:
    """Ranks and loader workers must not outlive the start that failed."""
    folders = {result.log.parent for result in results.values()}
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has just ended
            if Path(process.cwd()) in folders:
                left.append(process)
    assert not left
