"""The runtime's options: a table of flags with environment twins, and the values of this process.

A value comes from the command line, else from the environment twin `RETROFIT_<FLAG>`, else from the table.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "add_runtime_flags",
    "get_option",
    "set_options",
]

MOST_RANKS = 2**20


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

    def parse(self, text: str) -> Any:
        """Return the value that `text` is; takes what argparse's `type` takes. Raises argparse.ArgumentTypeError."""
        try:
            value = self.type(text)
        except (ValueError, OverflowError):
            raise argparse.ArgumentTypeError(f"invalid {self.type.__name__} value: {text!r}") from None
        if self.bounds is not None and not self.bounds[0] <= value <= self.bounds[1]:  # nan is not
            raise argparse.ArgumentTypeError(f"must be from {self.bounds[0]:g} to {self.bounds[1]:g}, got {text!r}")
        return value

    @property
    def environment_twin(self) -> str:
        return f"RETROFIT_{self.name.upper()}"


DDP_FLAGS = (
    RuntimeFlag(
        "distributed",
        False,
        "train in a process group; without a launcher a real group of one process (default: only when a launcher "
        "started more than one process)",
        bool,
    ),
    RuntimeFlag(
        "local_rank",
        -1,
        "index of this process's GPU on its node; a launcher's LOCAL_RANK wins (default: -1, from the environment)",
        int,
        bounds=(-1, MOST_RANKS),
        aliases=("--local-rank",),  # what torch.distributed.launch passes since torch 2.0
    ),
    RuntimeFlag(
        "world_size",
        1,
        "number of processes; set by the launcher, which wins (default: %(default)s)",
        int,
        bounds=(1, MOST_RANKS),
    ),
    RuntimeFlag("dist_url", "env://", "where the processes meet: env:// or tcp://HOST:PORT (default: %(default)s)"),
    RuntimeFlag(
        "dist_backend",
        "auto",
        "communication backend (default: %(default)s = nccl on CUDA, gloo on CPU)",
        choices=("auto", "nccl", "gloo"),
    ),
    RuntimeFlag(
        "dist_timeout",
        1800.0,
        "seconds a collective waits for the slowest rank (default: %(default)s)",
        float,
        bounds=(0.001, 1e7),
    ),
    RuntimeFlag(
        "batch",
        "per_gpu",
        "what the batch size counts: samples per GPU, or per optimizer step over all GPUs (default: %(default)s)",
        choices=("per_gpu", "global"),
    ),
    RuntimeFlag(
        "lr_scale",
        "linear",
        "learning rate factor for global batch / batch size; none switches it off (default: %(default)s)",
        choices=("linear", "sqrt", "none"),
    ),
    RuntimeFlag(
        "find_unused_parameters",
        False,
        "let DDP itself look in every step for parameters that take no part in the loss; slower (default: off, "
        "the runtime finds them)",
        bool,
    ),
    RuntimeFlag(
        "comm_hook",
        "none",
        "how DDP's gradients travel: fp16 and bf16 halve them, powersgd sends a low-rank approximation, which is "
        "another training (default: %(default)s)",
        choices=("none", "fp16", "bf16", "powersgd"),
    ),
    RuntimeFlag(
        "bucket_cap_mb",
        25.0,
        "MiB of gradients that DDP sends at once (default: %(default)s)",
        float,
        bounds=(0.001, 1e6),
    ),
    RuntimeFlag(
        "gradient_as_bucket_view",
        False,
        "let gradients live in DDP's buckets, which saves one copy of them (default: off)",
        bool,
    ),
    RuntimeFlag(
        "static_graph",
        False,
        "promise DDP that every step uses the same parameters in the same order (default: off)",
        bool,
    ),
)

FLAGS: dict[str, RuntimeFlag] = {flag.name: flag for flag in DDP_FLAGS}  # production_flags.py adds its own
_values: dict[str, Any] = {}  # of this process: given to a parser or to setup_distributed


def add_runtime_flags(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the runtime flags of DDP to a parser that knows nothing of them, and return it.

    They leave no trace in the parsed options, which a script may print or save: what is given goes to
    `setup_distributed` directly. A flag that the parser has already, or that would end the use of an abbreviation
    (`--batch` for `--batch_size`), is called `--dist_<flag>` instead. What the parser refuses is reported by one rank
    per node; the others exit with status 2 in silence.
    """
    group = parser.add_argument_group("distributed training", "each flag has an environment twin RETROFIT_<FLAG>")
    report_on_one_rank(parser, os.environ)
    for flag in DDP_FLAGS:
        names = [name for name in (f"--{flag.name}", *flag.aliases) if _is_free(parser, name)]
        names = names or [f"--dist_{flag.name}"]
        kind: dict[str, Any] = {"nargs": 0} if flag.type is bool else {"type": flag.parse, "choices": flag.choices}
        text = flag.help.replace("%(default)s", str(flag.default))
        group.add_argument(*names, action=_Remember, default=argparse.SUPPRESS, dest=flag.name, help=text, **kind)  # type: ignore[arg-type]
    return parser


def get_option(name: str) -> Any:
    """Return the value of a runtime option. Raises ValueError for a twin whose value its flag would refuse."""
    return _values[name] if name in _values else read_twin(FLAGS[name], os.environ)


def set_options(args: argparse.Namespace) -> None:
    """Let `get_option` answer from `args`: options that are known only after `setup_distributed`, from a checkpoint.

    The group stays as it was joined. Every rank must call it, with the same options.
    """
    _values.update({name: value for name, value in vars(args).items() if name in FLAGS})


def forget_options() -> None:
    """Forget what was given: the environment twins and the defaults count again."""
    _values.clear()


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
    if name in taken:
        return False
    return not getattr(parser, "allow_abbrev", True) or not any(own.startswith(name) for own in taken)


def read_twin(flag: RuntimeFlag, environ: Mapping[str, str]) -> Any:
    """Return what the environment says about a flag, else its default. Raises ValueError for a value it refuses."""
    text = environ.get(flag.environment_twin)
    if text is None or text == "":
        return flag.default
    if flag.type is bool:
        allowed: tuple[str, ...] = ("0", "1", "false", "true")
        if text.lower() in allowed:
            return text.lower() in ("1", "true")
    else:
        allowed = flag.choices or (flag.type.__name__,)
        if flag.bounds is not None:
            allowed = (f"{flag.type.__name__} from {flag.bounds[0]:g} to {flag.bounds[1]:g}",)
        try:
            value = flag.parse(text)
        except argparse.ArgumentTypeError:
            value = None
        if value is not None and (flag.choices is None or value in flag.choices):
            return value
    raise ValueError(
        f"{flag.environment_twin}={text!r} is not valid; use one of: {', '.join(map(str, allowed))}, or unset it"
    )
