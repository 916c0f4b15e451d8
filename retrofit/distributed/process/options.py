"""The runtime's options: a table of flags with environment twins, and the values of this process.

A value comes from the command line, else from the environment twin `RETROFIT_<FLAG>`, else from the table.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

__all__ = ["add_runtime_flags", "get_option", "set_options"]

MOST_RANKS = 2**20
SWITCH = {"0": False, "1": True, "false": False, "true": True}


@dataclass(frozen=True)
class RuntimeFlag:
    """One runtime option: how a parser declares it and how its environment twin is read."""

    name: str
    default: Any
    help: str
    type: type = str
    choices: tuple[Any, ...] | None = None
    aliases: tuple[str, ...] = ()
    bounds: tuple[float, float] | None = None  # of a number, both included

    @property
    def environment_twin(self) -> str:
        return f"RETROFIT_{self.name.upper()}"

    def parse(self, text: str) -> Any:
        """Return the value that `text` is. Raises argparse.ArgumentTypeError, which says what is allowed."""
        allowed = ", ".join(map(str, self.choices or (SWITCH if self.type is bool else (self.type.__name__,))))
        if self.bounds is not None:
            allowed += f" from {self.bounds[0]:g} to {self.bounds[1]:g}"
        with suppress(KeyError, ValueError, OverflowError):
            value = SWITCH[text.lower()] if self.type is bool else self.type(text)
            is_inside = self.bounds is None or self.bounds[0] <= value <= self.bounds[1]  # nan is not
            if is_inside and value in (self.choices or (value,)):
                return value
        raise argparse.ArgumentTypeError(f"{text!r} is not valid; use one of: {allowed}")


DDP_FLAGS = (
    RuntimeFlag("distributed", False, "train in a process group; without a launcher a real group of one process "
                "(default: only when a launcher started more than one process)", bool),
    RuntimeFlag("local_rank", -1, "index of this process's GPU on its node; a launcher's LOCAL_RANK wins (default: -1, "
                "from the environment)", int, None, ("--local-rank",), (-1, MOST_RANKS)),  # alias: since torch 2.0
    RuntimeFlag("dist_url", "env://", "where the processes meet: env:// or tcp://HOST:PORT (default: %(default)s)"),
    RuntimeFlag("dist_backend", "auto", "communication backend (default: %(default)s = nccl on CUDA, gloo on CPU)",
                choices=("auto", "nccl", "gloo")),
    RuntimeFlag("dist_timeout", 1800.0, "seconds a collective waits for the slowest rank (default: %(default)s)",
                float, bounds=(0.001, 1e7)),
    RuntimeFlag("batch", "per_gpu", "what the batch size counts: samples per GPU, or per optimizer step over all GPUs "
                "(default: %(default)s)", choices=("per_gpu", "global")),
    RuntimeFlag("lr_scale", "linear", "learning rate factor for global batch / batch size; none switches it off "
                "(default: %(default)s)", choices=("linear", "sqrt", "none")),
    RuntimeFlag("find_unused_parameters", False, "let DDP itself look in every step for parameters that take no part "
                "in the loss; slower (default: off, the runtime finds them)", bool),
)  # fmt: skip

FLAGS: dict[str, RuntimeFlag] = {flag.name: flag for flag in DDP_FLAGS}  # other modules may add theirs
BATCHNORM = RuntimeFlag("batchnorm", "sync", "statistics of all ranks, or each its own", choices=("sync", "local"))
CONSISTENCY = RuntimeFlag(  # as BATCHNORM a variable, without a flag
    "consistency", "first", "when the ranks compare their parameters", choices=("off", "first", "always")
)
OTHER_TWINS = (
    *("RETROFIT_STRATEGY", "RETROFIT_WHY", "RETROFIT_WHY_FOLDER"),
    *(BATCHNORM.environment_twin, CONSISTENCY.environment_twin),
)
_values: dict[str, Any] = {}  # of this process: given to a parser or to setup_distributed


def add_runtime_flags(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the runtime flags to a parser that knows nothing of them, and return it.

    They leave no trace in the parsed options: what is given goes to `setup_distributed` directly. A flag that the
    parser has already, or that would end the use of an abbreviation (`--batch` for `--batch_size`), is called
    `--dist_<flag>` instead. One rank per node reports what the parser refuses; the others exit with status 2.
    """
    group = parser.add_argument_group("distributed training", "each flag has an environment twin RETROFIT_<FLAG>")
    report_on_one_rank(parser, os.environ)
    for flag in DDP_FLAGS:
        names = [name for name in (f"--{flag.name}", *flag.aliases) if _is_free(parser, name)]
        kind: dict[str, Any] = {"nargs": 0} if flag.type is bool else {"type": flag.parse, "choices": flag.choices}
        kind.update(dest=flag.name, default=argparse.SUPPRESS, help=flag.help.replace("%(default)s", str(flag.default)))
        group.add_argument(*names or [f"--dist_{flag.name}"], action=_Remember, **kind)
    return parser


def get_option(name: str) -> Any:
    """Return the value of a runtime option. Raises ValueError for a twin whose value its flag would refuse."""
    return _values[name] if name in _values else read_twin(FLAGS[name])


def set_options(args: argparse.Namespace) -> None:
    """Let `get_option` answer from `args`, also after `setup_distributed`. Every rank must, with the same options."""
    _values.update({name: value for name, value in vars(args).items() if name in FLAGS})


def unread_twins(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that look like an option and are none: misspelt, or of a part that is not loaded."""
    known = {*OTHER_TWINS, *(flag.environment_twin for flag in FLAGS.values())}
    return sorted(name for name in environ if name.startswith("RETROFIT_") and name not in known)


def forget_options() -> None:
    """Forget what was given: the environment twins and the defaults count again."""
    _values.clear()


def read_twin(flag: RuntimeFlag, environ: Mapping[str, str] = os.environ) -> Any:
    """Return what the environment says about a flag, else its default. Raises ValueError for a value it refuses."""
    text = environ.get(flag.environment_twin)
    try:
        return flag.parse(text) if text else flag.default
    except argparse.ArgumentTypeError as refusal:
        raise ValueError(f"{flag.environment_twin}={refusal}, or unset it") from None


def report_on_one_rank(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    """Let one rank per node report what the parser refuses; the others exit with status 2 in silence."""
    if environ.get("LOCAL_RANK", "0") not in ("", "0"):
        parser.error = lambda message: parser.exit(2)  # type: ignore[method-assign, assignment]


class _Remember(argparse.Action):
    """Keeps the value for setup_distributed instead of putting it into the namespace."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        _values[self.dest] = True if self.nargs == 0 else values


def _is_free(parser: argparse.ArgumentParser, name: str) -> bool:
    """Return whether a flag of this name changes nothing for those who use the parser's own flags."""
    taken = parser._option_string_actions
    abbreviates = getattr(parser, "allow_abbrev", True) and any(own.startswith(name) for own in taken)
    return name not in taken and not abbreviates
