"""How much faster 2 processes or GPUs are than 1, strategy by strategy, and what train.py costs over a DDP by hand.

  python benchmarks/scaling.py                                   on two GPUs; without any, two processes on the CPU
  python benchmarks/scaling.py --batchsize 16                    a smaller batch: communication weighs more
  python benchmarks/scaling.py --model_type swin_mlp             another model
  python benchmarks/scaling.py --plot docs/scaling.png --output docs/scaling.md

Each row is a training of its own, by train.py with that --strategy or by handwritten_ddp.py, in processes that wait
for their turn (turns.py): every round runs an epoch of each, so that a noisy machine disturbs all equally. The batch
per process (under dp per GPU) is the same everywhere. Ratios are formed round by round; the median is given, and the
range. On the CPU every process has one thread. What cannot run here is left out, and the table says why.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asks for GPUs without touching them, before the fork

import torch  # noqa: E402
import torch._dynamo  # noqa: E402  the first optimizer needs it: imported once, not in every process
import torch.distributed.fsdp  # noqa: E402
from handwritten_ddp import HandwrittenLoop  # noqa: E402
from rounds import command, environment, markdown_table, median_and_range, text_table  # noqa: E402
from turns import FORK, Training, Turns  # noqa: E402

import retrofit.distributed as rd  # noqa: E402
import train  # noqa: E402
import utils  # noqa: E402

BY_HAND = "ddp by hand"
TITLES = ("strategy", "{unit}", "images/s", "speed-up over single")
PAGE = """\
# Speed-up, strategy by strategy

Written by

    {command}

{setting}.

{picture}{table}
Every row trains with the same batch per {unit}. *speed-up over single* is the ratio of the images per second in the
same round. Both columns are medians of {rounds} rounds, with the smallest and the largest. `ddp by hand` is
`benchmarks/handwritten_ddp.py`, the loop that a DDP tutorial ends with.

Over 2: {against_hand}.
"""


@dataclass
class Row:
    """A training that is measured, or the reason why it is not."""

    strategy: str
    devices: int  # processes; under dp GPUs
    why_not: str = ""
    seconds: list[float] = field(default_factory=list)

    @property
    def processes(self) -> int:
        return 1 if self.strategy == "dp" else self.devices


def main() -> int:
    args = get_arguments()
    num_gpus = 0 if args.device == "cpu" else count_gpus()
    rows = rows_for(args, num_gpus)
    measure(args, rows, num_gpus)
    unit = "GPUs" if num_gpus else "processes"
    titles = [title.format(unit=unit) for title in TITLES]
    setting, against_hand = setting_of(args, num_gpus), by_hand(rows)
    cells = [cells_of(row, rows, args) for row in rows]
    print(setting, "", text_table(titles, cells), "", against_hand, sep="\n")
    if args.plot:
        from scaling_plot import plot

        bars = [(row.strategy, row.devices, speed_ups(row, rows) if row.seconds else row.why_not) for row in rows]
        plot(args.plot, bars, unit, setting)
        print(f"wrote {args.plot}", file=sys.stderr)
    if args.output:
        facts = {"command": command(), "setting": setting, "rounds": args.rounds, "against_hand": against_hand}
        facts["unit"] = "GPU" if num_gpus else "process"
        page = PAGE.format(**facts, picture=picture(args), table=markdown_table(titles, cells))
        args.output.write_text(page, encoding="utf-8")
        print(f"wrote {args.output}", file=sys.stderr)
    return 0


def get_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    models = ("deeplabv3p", "deeplabv2", "swin_mlp")
    add("--model_type", choices=models, default="deeplabv3p", help="architecture (default: %(default)s)")
    add("--layers", type=int, default=18, help="depth of the ResNet, or the Swin's size (default: %(default)s)")
    add("--crop_size", type=int, default=128, help="image side, pixels (default: %(default)s)")
    add("--batchsize", type=int, default=64, help="images per process and step (default: %(default)s)")
    add("--steps", type=int, default=2, help="steps per epoch measured (default: %(default)s)")
    add("--rounds", type=int, default=5, help="rounds, after one warm-up (default: %(default)s)")
    add("--workers", type=int, default=0, help="loader processes per process; 0 = none (default: %(default)s)")
    add("--device", choices=("auto", "cpu"), default="auto", help="(default: %(default)s = GPUs where there are any)")
    add("--plot", type=Path, metavar="FILE", help="draw the speed-ups there as PNG (default: no)")
    add("--output", type=Path, metavar="FILE", help="write the table there as Markdown (default: no)")
    return parser.parse_args()


def count_gpus() -> int:
    """Return the number of visible GPUs, asked for in another process: a GPU once touched cannot be used in a fork."""
    with FORK.Pool(1) as pool:
        return pool.apply(torch.cuda.device_count)


def rows_for(args: argparse.Namespace, num_gpus: int) -> list[Row]:
    """Return the rows of the table, in its order."""
    rows = [Row("single", 1)]
    for strategy in ("dp", "ddp", "fsdp"):
        rows += [Row(strategy, 1), Row(strategy, 2)]
    rows.append(Row(BY_HAND, 2))
    for row in rows:
        if row.strategy == "dp" and num_gpus == 0:
            row.why_not = "dp needs GPUs: not measured here"
        elif num_gpus == 1 and row.devices == 2:
            row.why_not = "needs 2 GPUs: not measured here"
        elif row.strategy == "fsdp" and not hasattr(torch.distributed.fsdp, "fully_shard"):
            row.why_not = "fsdp needs torch 2.6: not measured here"
    return rows


def measure(args: argparse.Namespace, rows: list[Row], num_gpus: int) -> None:
    """Run an epoch of every row in turn, round by round; the seconds go into the rows."""
    with tempfile.TemporaryDirectory() as logdir, Turns() as turns:
        trainings: list[tuple[Row, Training]] = []
        for row in rows:
            if not row.why_not:
                print(f"{row.strategy} x {row.devices}: setting up", file=sys.stderr)
                options = {"args": args, "row": row, "logdir": logdir, "num_gpus": num_gpus}
                training = turns.start(f"{row.strategy} x {row.devices}", row.processes, make_epoch, **options)
                training.ready()
                trainings.append((row, training))
        for number in range(args.rounds + 1):
            print(f"round {number} of {args.rounds}{'' if number else ' (warm-up)'}", file=sys.stderr)
            for row, training in trainings:
                seconds = training.run()
                if number:
                    row.seconds.append(seconds)


# ---- in the processes of one row ---------------------------------------------------------------------------


def make_epoch(url: str, args: argparse.Namespace, row: Row, logdir: str, num_gpus: int) -> Callable[[], None]:
    """Return what trains an epoch of `steps` steps, on this process."""
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name] or ["0", "1"]
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible[: row.devices] if num_gpus else [])
    torch.set_num_threads(1)
    options = ["--strategy", "ddp" if row.strategy == BY_HAND else row.strategy, "--dist_url", url]
    if row.strategy in ("ddp", "fsdp", BY_HAND):
        options.append("--distributed")  # a real group, of one process too
    per_process = args.batchsize * row.devices // row.processes
    options += ["--model_type", args.model_type, "--layers", str(args.layers), "--crop_size", str(args.crop_size)]
    options += ["--batchsize", str(per_process), "--workers", str(args.workers), "--epochs", "1000"]
    options += ["--logdir", logdir, "--lr", "0.01", "--lr_scale", "none"]
    train_options = train.get_arguments(options)
    rd.setup_distributed(train_options)
    if row.strategy == BY_HAND:
        return HandwrittenLoop(args.layers, args.crop_size, args.batchsize, args.steps, args.model_type).run_epoch
    epoch = first_epoch(train_options, args.steps * args.batchsize * row.devices)

    def run_epoch() -> None:
        train.train_one_epoch(*epoch)  # progress bar and event file included
        if num_gpus:
            torch.cuda.synchronize()

    return run_epoch


def first_epoch(options: argparse.Namespace, length: int) -> tuple[Any, ...]:
    """Return what train.py trains its first epoch with, over so many images: the arguments of train_one_epoch."""
    build_dataset = utils.build_dataset
    with (
        mock.patch.object(utils, "build_dataset", lambda *arguments: build_dataset(*arguments, length=length)),
        mock.patch.object(train, "train_one_epoch", mock.Mock(side_effect=KeyboardInterrupt)) as begin,
        suppress(KeyboardInterrupt),
    ):
        train.train(options, None)
    return begin.call_args.args


# ---- what came of it ---------------------------------------------------------------------------------------


def speed_ups(row: Row, rows: list[Row]) -> list[float]:
    """Return the images per second over those of a single process, round by round."""
    return [row.devices * single / seconds for single, seconds in zip(rows[0].seconds, row.seconds)]


def cells_of(row: Row, rows: list[Row], args: argparse.Namespace) -> list[str]:
    if row.why_not:
        return [row.strategy, str(row.devices), "-", row.why_not]
    images = args.steps * args.batchsize * row.devices
    rates = median_and_range((images / seconds for seconds in row.seconds), 1)
    return [row.strategy, str(row.devices), rates, median_and_range(speed_ups(row, rows))]


def by_hand(rows: list[Row]) -> str:
    """Return train.py's time per step over that of the loop by hand."""
    ours, hand = (next(r for r in rows if (r.strategy, r.devices) == (name, 2)) for name in ("ddp", BY_HAND))
    if not ours.seconds or not hand.seconds:
        return f"time per step, train.py / hand-written DDP loop: {hand.why_not}"
    ratios = [a / b for a, b in zip(ours.seconds, hand.seconds)]
    return f"time per step, train.py / hand-written DDP loop: {median_and_range(ratios)}"


def setting_of(args: argparse.Namespace, num_gpus: int) -> str:
    gpus = ""
    if num_gpus:
        with FORK.Pool(1) as pool:
            gpus = f", {num_gpus} x {pool.apply(torch.cuda.get_device_name)}"
    return (
        f"{environment()}{gpus}; {args.model_type} of {args.layers} layers, {args.crop_size}x{args.crop_size}, batch "
        f"{args.batchsize} per {'GPU' if num_gpus else 'process'}, steps per round: {args.steps}, rounds: {args.rounds}"
    )


def picture(args: argparse.Namespace) -> str:
    if args.plot is None:
        return ""
    return f"![Speed-up over a single process]({os.path.relpath(args.plot, args.output.parent)})\n\n"


if __name__ == "__main__":
    sys.exit(main())
