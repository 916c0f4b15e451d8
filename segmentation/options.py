"""Command line and YAML options of the segmentation project."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from segmentation.config_file import NO_WORDS, ConfigWords, nearest, read_config
from segmentation.datasets import DATASETS
from segmentation.models import LAYERS, MODEL_TYPES

DEMO_CONFIGS = Path(__file__).resolve().parent.parent / "configs"
MOST, LARGEST = 2**31, 3.4e38  # upper limits of whole numbers, and of others (float32)
# Options that belong to one call, not to the training that a checkpoint continues.
NOT_SAVED = ("config", "task", "resume", "logdir", "dry_run", "predict_path", "output")


class OptionParser(argparse.ArgumentParser):
    """A parser that suggests the nearest flag for an unknown one."""

    def error(self, message: str) -> NoReturn:
        """Print `message` and end with status 2."""
        if message.startswith("unrecognized arguments: "):
            known = [option for action in self._actions for option in action.option_strings]
            flags = [word.partition("=")[0] for word in re.findall(r"(?<!\S)-{1,2}[A-Za-z]\S*", message)]
            near = dict.fromkeys(filter(None, (nearest(flag, known) for flag in flags)))
            message += f"; did you mean {' and '.join(near)}?" if near else "; see --help for the options"
        super().error(message)


def build_parser(description: str | None = None, epilog: str | None = None) -> argparse.ArgumentParser:
    """Return the project's parser: model, data, training and output."""
    parser = OptionParser(
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # --warm must not silently become --warmup_epoch
    )
    add = parser.add_argument
    add("--task", choices=("train", "test", "predict"), default="train", help="what to do (default: %(default)s)")
    add(
        "--config",
        metavar="FILE",
        help="YAML file of options, alone or in sections (model, data, ...: the groups below); demo = sized to this "
        "machine (default: none)",
    )

    group = parser.add_argument_group("model")
    add = group.add_argument
    add("--model_type", choices=MODEL_TYPES, default="deeplabv3p", help="architecture (default: %(default)s)")
    add("--layers", type=int, choices=LAYERS, default=50, help="depth of the ResNet (default: %(default)s)")
    add("--numclasses", type=int, default=0, help="classes with background; 0 = the dataset's own (default: 0)")
    add("--model_path", default="none", help="backbone weights: none, imagenet, or a file (default: %(default)s)")

    group = parser.add_argument_group("data")
    add = group.add_argument
    add("--dataset", choices=DATASETS, default="synthetic", help="kind of dataset (default: %(default)s)")
    add(
        "--dataset_path",
        default="dataset",
        metavar="DIR",
        help="its folder; unused by synthetic (default: %(default)s)",
    )
    add("--crop_size", type=int, default=0, help="training crop, pixels; 0 = the dataset's own (default: 0)")
    add("--workers", type=int, default=4, help="loader processes per training process; 0 = none (default: %(default)s)")
    add("--batchsize", type=int, default=16, help="samples per GPU (default: %(default)s)")
    add("--no_pin_memory", action="store_true", help="batches reach the GPU through ordinary memory (default: off)")
    add("--predict_path", metavar="DIR", help="images for --task predict (default: the validation images)")
    add("--output", metavar="DIR", help="where --task predict writes (default: predictions/ in the run's folder)")

    group = parser.add_argument_group("training")
    add = group.add_argument
    add("--epochs", type=int, default=20, help="passes over the training set (default: %(default)s)")
    add("--lr", type=float, default=1e-3, help="peak learning rate for --batchsize samples (default: %(default)s)")
    add("--warmup_epoch", "--warmup", type=float, default=1.0, help="epochs of linear warm-up; 0 = none (default: 1)")
    add("--sched", choices=("cosine", "poly"), default="cosine", help="decay after warm-up (default: %(default)s)")
    add("--wdecay", type=float, default=5e-4, help="weight decay; 0 = none (default: %(default)s)")
    add("--momentum", type=float, default=0.9, help="of SGD (default: %(default)s)")
    add("--l_segs", "--l_seg", type=float, default=1.0, help="weight of the segmentation loss (default: %(default)s)")
    add(
        "--l_lorm",
        type=float,
        default=0.1,
        help="weight of the *_lorm models' extra loss; 0 = off (default: %(default)s)",
    )
    add("--label_smooth", type=float, default=0.0, help="label smoothing, 0..1; 0 = off (default: 0)")
    add("--clip_grad", type=float, default=0.0, help="largest gradient norm; 0 = no clipping (default: 0)")
    add("--ema_decay", type=float, default=0.0, help="evaluate a moving average of the weights; 0 = off (default: 0)")
    add("--amp", choices=("off", "fp16", "bf16"), default="off", help="mixed precision (default: %(default)s)")
    add("--channels_last", action="store_true", help="NHWC memory format, faster on GPUs with --amp (default: off)")
    add("--compile", action="store_true", help="torch.compile the model (default: off)")
    add("--seed", type=int, default=1000, help="of weights, order and augmentation (default: %(default)s)")
    add("--deterministic", action="store_true", help="deterministic algorithms only, slower on a GPU (default: off)")

    group = parser.add_argument_group("output")
    add = group.add_argument
    add("--logdir", default="./log", metavar="DIR", help="every training gets a folder in it (default: %(default)s)")
    add("--chk_interval", type=int, default=1, help="epochs between checkpoints (default: %(default)s)")
    add("--chk_steps", type=int, default=0, help="also a checkpoint every N optimizer steps; 0 = none (default: 0)")
    add("--val_epoch", type=int, default=0, help="epochs at the start without validation (default: 0)")
    add("--resume", default="", metavar="PATH", help="checkpoint or auto (default: from the beginning)")
    return parser


class Options(argparse.Namespace):
    """The options of a run; `given` are the names of those that the command line or the `--config` file gave."""

    __slots__ = ("given",)  # not one of vars()
    given: frozenset[str]


def parse_options(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None = None, words: ConfigWords = NO_WORDS
) -> Options:
    """Parse `argv`: the command line wins over the `--config` file, and the file over the parser's defaults.

    `words` are other names that the file may use.
    Without any argument the demonstration runs: `--config demo`, small on a machine without a GPU.
    Exits with status 2 and a message for an unknown flag, an unknown YAML key or an invalid value.
    """
    argv = list(sys.argv[1:] if argv is None else argv) or ["--config", "demo"]
    names = [action.dest for action in parser._actions if action.dest != "help"]
    not_given = object()
    parsed = parser.parse_args(argv, argparse.Namespace(**dict.fromkeys(names, not_given)))
    given = {name: value for name, value in vars(parsed).items() if value is not not_given}
    if given.get("config"):
        try:
            given = {**read_config(parser, _config_path(given["config"]), words), **given}
        except (ValueError, OSError) as error:
            parser.error(str(error))
    options = Options(**{name: given.get(name, parser.get_default(name)) for name in names})
    options.given = frozenset(given)
    _check_ranges(parser, options)
    return options


def continue_options(parser: argparse.ArgumentParser, options: Options, saved: Mapping[str, Any]) -> None:
    """Set the options that a checkpoint carries (`saved`), except those that were given for this run.

    Exits with status 2 and a message for an invalid value.
    """
    for name, value in saved.items():
        if hasattr(options, name) and name not in options.given:
            setattr(options, name, value)
    _check_ranges(parser, options)


def options_to_save(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options that a checkpoint carries, so that `--resume` works without repeating them."""
    return {key: value for key, value in vars(args).items() if key not in NOT_SAVED}


def _config_path(config: str) -> str:
    """Return the path of the file that `--config` means."""
    if config != "demo":
        return config
    return str(DEMO_CONFIGS / f"demo_{'gpu' if torch.cuda.is_available() else 'cpu'}.yaml")


def _check_ranges(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    at_least = {"batchsize": 1, "epochs": 1, "chk_interval": 1, "chk_steps": 0, "workers": 0, "crop_size": 0}
    at_least.update({"numclasses": 0, "val_epoch": 0, "warmup_epoch": 0, "lr": 0, "wdecay": 0, "clip_grad": 0})
    at_least.update({"l_segs": 0, "l_lorm": 0})
    for name, lowest in at_least.items():
        value = getattr(args, name)
        if not lowest <= value < math.inf:  # nan is not
            parser.error(f"--{name} must be a number of at least {lowest}, got {value}")
        most = MOST if isinstance(value, int) else LARGEST
        if value >= most:
            parser.error(f"--{name} must be less than {most}, got {value}")
    if not 0 <= args.seed < 2**32:  # numpy's limits
        parser.error(f"--seed must be from 0 to {2**32 - 1}, got {args.seed}")
    for name in ("label_smooth", "ema_decay", "momentum"):
        if not 0 <= getattr(args, name) < 1:
            parser.error(f"--{name} must be in 0..1 (1 excluded), got {getattr(args, name)}")
