"""The three tasks as a user runs them: train, test and predict, on one process and on two, and what they leave."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import guide_commands
import numpy as np
import pytest
import torch
from forked_python import ForkedPython
from guide_commands import ROOT, STARTS
from guide_commands import run as run_guide
from image_folder import CLASSES, SIZE, folder_options, make_images
from PIL import Image
from verify.projects.launch import Launcher

import train
import utils
from segmentation.losses import cross_entropy_sum, num_valid_pixels

pytestmark = pytest.mark.usefixtures("forked_python")

IMAGES, BATCH = 48, 8  # to train on (a quarter as many validate); per rank and step
SMALL = ["--layers", "18", "--crop_size", "32", "--batchsize", str(BATCH), "--epochs", "2", "--lr", "0.02"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def run(launcher: Launcher, *arguments: str, world_size: int = 1) -> str:
    """Run train.py in processes that need no start of Python, and return what rank 0 printed."""
    ended = launcher.run(ROOT, str(ROOT / "train.py"), list(arguments), world_size, CUDA_VISIBLE_DEVICES="")
    assert ended["statuses"] == [0] * world_size, ended["outputs"]
    return ended["outputs"][0]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options of a folder of images."""
    return folder_options(make_images(tmp_path_factory.mktemp("data") / "images", IMAGES))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, data: list[str], forks: ForkedPython) -> tuple[Path, str]:
    """The log folder of a training on two ranks, and what it printed."""
    logdir = tmp_path_factory.mktemp("trained") / "log"
    with forks.in_place():
        ended = run_guide(STARTS["train"], *SMALL, *data, "--workers", "1", "--logdir", str(logdir))
    return logdir, ended.stdout


def test_training_ends_with_the_class_table_and_the_summary(trained: tuple[Path, str]) -> None:
    _, output = trained
    assert re.search(r"class 0\s*│\s*0\.\d{4}", output)
    assert re.search(r"pixel accuracy\s*│\s*0\.\d{4}", output)
    summary = output[output.rindex("training") :]
    assert re.search(r"processes\s*│ 2 ", summary)
    assert re.search(r"global batch\s*│ 16 ", summary)
    assert re.search(r"images/s\s*│ \d+\.\d", summary)
    assert "validation, 12 images" in output


def test_one_rank_writes_and_only_what_belongs_into_the_folder(trained: tuple[Path, str]) -> None:
    (folder,) = trained[0].iterdir()
    assert folder.name == "001_deeplabv3p_r18_folder"
    names = sorted(path.name for path in folder.iterdir())
    events = [name for name in names if name.startswith("events.")]
    assert len(events) == 1
    expected = [".in_use_by", ".launched_by", "best.pt"]  # the lock; the launcher, for torchrun's restarts
    expected += ["checkpoint_0001_00000000.pt", "checkpoint_0002_00000000.pt", "config.yaml"]
    assert sorted(set(names) - set(events)) == expected


def test_tensorboard_reads_the_curves_and_panels(trained: tuple[Path, str]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = trained[0].iterdir()
    events = EventAccumulator(str(folder))
    events.Reload()
    assert {"train/loss", "train/lr", "train/images_per_s", "val/mIoU"} <= set(events.Tags()["scalars"])
    # 48 images are 3 steps of 16; the x axis counts images.
    assert [event.step for event in events.Scalars("train/loss")] == [16 * step for step in range(1, 7)]
    assert [event.step for event in events.Scalars("val/mIoU")] == [IMAGES, 2 * IMAGES]
    assert all(event.value > 0 for event in events.Scalars("train/images_per_s"))
    best = torch.load(folder / "best.pt", weights_only=True)["best_miou"]
    assert max(event.value for event in events.Scalars("val/mIoU")) == pytest.approx(best)
    (picture,) = {name.split("/image")[0] for name in events.Tags()["images"]}
    assert picture == "val/input_label_prediction"
    assert [image.step for image in events.Images(picture)] == [IMAGES, 2 * IMAGES]
    grid = Image.open(io.BytesIO(events.Images(picture)[-1].encoded_image_string))
    size = SIZE + 2  # a line between the tiles: four rows of input, label, prediction
    assert grid.size == (3 * size + 2, 4 * size + 2)
    (text,) = [event for event in events.Tensors("options/text_summary")]
    shown = text.tensor_proto.string_val[0].decode()
    assert "    batchsize: 8\n" in shown and "    dataset: folder\n" in shown


def test_tensorboard_reads_the_scores_of_every_validation(trained: tuple[Path, str], data: list[str]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = trained[0].iterdir()
    events = EventAccumulator(str(folder)).Reload()
    curves = {tag: [event.value for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    table = dict(re.findall(r"│ ([\w ]+?)\s*│\s*(0\.\d{4}) │", trained[1]))
    classes = {tag: curves[tag] for tag in curves if tag.startswith("val_IoU/")}
    table = {name.replace(" ", "_"): score for name, score in table.items()}  # as TensorBoard writes a tag
    assert {f"val_IoU/{name}" for name in table} - {"val_IoU/mIoU", "val_IoU/pixel_accuracy"} == set(classes)
    for name, score in table.items():
        tag = {"mIoU": "val/mIoU", "pixel_accuracy": "val/pixel_accuracy"}.get(name, f"val_IoU/{name}")
        assert len(curves[tag]) == 2 and f"{curves[tag][-1]:.4f}" == score
    # The loss of one process over all validation images, with the weights of the last epoch.
    checkpoint = torch.load(folder / "checkpoint_0002_00000000.pt", weights_only=True)
    args = train.get_arguments(["--config", str(ROOT / "configs" / "ddp_example.yaml"), *SMALL, *data])
    model = utils.get_model(args, torch.device("cpu"))
    model.load_state_dict(checkpoint["model"])
    loader = utils.get_dataloader(args, "val")
    model.eval()
    with torch.no_grad():
        losses = [
            (
                cross_entropy_sum(model(batch["image"]), batch["label"], args.label_smooth).item(),
                num_valid_pixels(batch["label"]),
            )
            for batch in loader
        ]
    mean = sum(loss for loss, _ in losses) / sum(valid for _, valid in losses)
    assert curves["val/loss"][-1] == pytest.approx(args.l_segs * mean, rel=1e-5)


def test_tensorboard_serves_the_log_folder(trained: tuple[Path, str], unused_port: int) -> None:
    command, logdir = STARTS["tensorboard"].split()
    command = str(Path(sys.executable).with_name(command))
    options = [f"--port={unused_port}", "--host=127.0.0.1"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen([command, logdir, *options], cwd=trained[0].parent, **quiet)
    try:
        tags = _get_json(f"http://127.0.0.1:{unused_port}/data/plugin/scalars/tags", deadline_s=60)
    finally:
        server.kill()
        server.wait()
    assert "val/mIoU" in tags["001_deeplabv3p_r18_folder"]


@pytest.fixture
def unused_port() -> int:
    return guide_commands.unused_port()


def _get_json(url: str, deadline_s: float) -> dict:
    deadline = time.monotonic() + deadline_s
    content: dict = {}
    while not content:  # the server answers before it has read the folder
        assert time.monotonic() < deadline, f"{url} has no content"
        time.sleep(0.3)
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                content = json.load(answer)
        except OSError:
            continue
    return content


def class_table(output: str) -> list[str]:
    return re.findall(r"│ ([\w ]+?)\s*│\s*(n/a|\d\.\d{4}) │", output)


def test_testing_gives_the_same_table_on_one_process_and_on_two(
    trained: tuple[Path, str], data: list[str], launcher: Launcher
) -> None:
    # Without any model option: they come with the checkpoint.
    logdir = ("--logdir", str(trained[0]))
    one = run(launcher, "--task", "test", "--resume", "auto", *logdir)
    two = run_guide(STARTS["test"], *data, *logdir).stdout
    assert "best.pt" in one
    assert "validation, 12 images" in two
    assert len(class_table(one)) == CLASSES + 2  # and mIoU, pixel accuracy
    assert class_table(one) == class_table(two)
    (folder,) = trained[0].iterdir()
    best = torch.load(folder / "best.pt", weights_only=True)["best_miou"]
    assert dict(class_table(one))["mIoU"] == f"{best:.4f}"


def test_prediction_is_split_across_ranks_and_complete(
    trained: tuple[Path, str], data: list[str], tmp_path: Path, launcher: Launcher
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    rng = np.random.default_rng(0)
    for number, (height, width) in enumerate([(40, 56), (33, 47), (64, 64), (50, 40), (45, 45)]):
        Image.fromarray(rng.integers(0, 255, (height, width, 3), dtype=np.uint8)).save(photos / f"photo{number}.jpg")
    arguments = ("--logdir", str(trained[0]), "--predict_path", str(photos), "--output")
    one = run(launcher, "--task", "predict", "--resume", "auto", *arguments, str(tmp_path / "one"))
    two = run_guide(STARTS["predict"], *data, *arguments, str(tmp_path / "two")).stdout
    assert all(re.search(r"images\s*│ 5 ", output) for output in (one, two))
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == sorted(f"photo{n}_{kind}.png" for n in range(5) for kind in ("color", "index"))
    assert names == sorted(path.name for path in (tmp_path / "two").iterdir())
    for name in names:
        one, two = (Image.open(tmp_path / folder / name) for folder in ("one", "two"))
        assert np.array_equal(np.asarray(one), np.asarray(two))
    index = Image.open(tmp_path / "one" / "photo1_index.png")
    assert (index.mode, index.size) == ("P", (47, 33))
    assert np.asarray(index).max() < CLASSES


def test_prediction_without_a_folder_uses_the_validation_images(
    trained: tuple[Path, str], tmp_path: Path, launcher: Launcher
) -> None:
    run(launcher, "--task", "predict", "--logdir", str(trained[0]), "--output", str(tmp_path / "out"))
    assert len(list((tmp_path / "out").glob("*_index.png"))) == IMAGES // 4


def test_a_finished_run_is_not_trained_again(trained: tuple[Path, str], launcher: Launcher) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained[0].rglob("*.pt")}
    output = run(launcher, "--resume", "auto", "--workers", "0", "--logdir", str(trained[0]), world_size=2)
    assert re.search(r"epochs\s*│ 2 ", output)
    assert {path: path.stat().st_mtime_ns for path in trained[0].rglob("*.pt")} == before


def test_a_dry_run_writes_nothing(tmp_path: Path, launcher: Launcher) -> None:
    run(launcher, *SMALL, "--workers", "1", "--dry_run", "--logdir", str(tmp_path / "log"))
    run_guide(STARTS["local_rank"], *SMALL, "--workers", "0", "--dry_run", "--logdir", str(tmp_path / "log"))
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_reports_an_unusable_log_folder_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").touch()
    with pytest.raises(SystemExit, match="1"):
        train.main([*SMALL, "--dry_run", "--logdir", str(tmp_path / "log")])
    told = f"LogFolderError: log folder {tmp_path / 'log'} is not a folder; choose another --logdir"
    assert capfd.readouterr().err.split() == told.split()


def test_slurm_tasks_join_one_process_group(tmp_path: Path, unused_port: int, data: list[str]) -> None:
    """Two processes with the variables that srun sets; SLURM itself is not here, so its part is imitated."""
    step = {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "localhost",
    }
    step.update({"SLURM_STEP_TASKS_PER_NODE": "2", "MASTER_PORT": str(unused_port)})
    tasks = []
    for rank in range(2):
        place = {**ENVIRONMENT, **step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
        command = [sys.executable, str(ROOT / "train.py"), "--distributed", *SMALL, *data]
        command += ["--workers", "0", "--epochs", "1"]
        tasks.append(
            subprocess.Popen(
                [*command, "--logdir", str(tmp_path / "log")],
                env=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
        )  # fmt: skip
    outputs = [task.communicate(timeout=600)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], outputs
    assert "2 process(es), ddp, global batch 16" in outputs[0]
    assert "global batch" not in outputs[1]
    assert len(list((tmp_path / "log").iterdir())) == 1
