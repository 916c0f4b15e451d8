"""Give a parser the runtime's flags, each with an environment twin `RETROFIT_<FLAG>`, and read the twins."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any

from .flags import DDP_FLAGS, PLACE_FLAGS, RUNTIME_FLAGS, RuntimeFlag


def add_distributed_arguments(
    parser: argparse.ArgumentParser, environ: Mapping[str, str] | None = None
) -> argparse.ArgumentParser:
    """Add the runtime flags to `parser` and return it; defaults come from the environment twins.

    `RETROFIT_BATCH=global` sets the default of `--batch`; the flag on the command line wins.
    What the parser refuses is reported by one rank per node; the others exit with status 2 in silence.
    Raises ValueError for a twin whose value its flag would refuse.
    """
    environ = os.environ if environ is None else environ
    if environ.get("LOCAL_RANK", "0") not in ("", "0"):
        parser.error = lambda message: parser.exit(2)  # type: ignore[method-assign]
    defaults = distributed_options(environ)
    group = parser.add_argument_group("distributed training", "each flag has an environment twin RETROFIT_<FLAG>")
    for flag in RUNTIME_FLAGS:
        names = (f"--{flag.name}", *flag.aliases)
        if flag.type is bool:
            group.add_argument(*names, action="store_true", default=defaults[flag.name], help=flag.help)
        else:
            group.add_argument(
                *names, type=flag.parse, choices=flag.choices, default=defaults[flag.name], help=flag.help
            )
    return parser


def add_runtime_flags(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the runtime flags to a parser that knows nothing of them, and return it.

    Unlike `add_distributed_arguments` it leaves no trace in the parsed options, which a script may print or save: what
    is given goes to `setup_distributed` directly. Of the strategies it is DDP alone that a converted script has. A
    flag that the parser has already, or that would end the use of an abbreviation (`--batch` for `--batch_size`), is
    called `--dist_<flag>` instead.
    """
    group = parser.add_argument_group("distributed training", "each flag has an environment twin RETROFIT_<FLAG>")
    if os.environ.get("LOCAL_RANK", "0") not in ("", "0"):
        parser.error = lambda message: parser.exit(2)  # type: ignore[method-assign, assignment]
    for flag in DDP_FLAGS:
        names = [name for name in (f"--{flag.name}", *flag.aliases) if _is_free(parser, name)]
        names = names or [f"--dist_{flag.name}"]
        kind: dict[str, Any] = {"nargs": 0} if flag.type is bool else {"type": flag.parse, "choices": flag.choices}
        text = flag.help.replace("%(default)s", str(flag.default))
        group.add_argument(*names, action=_Remember, default=argparse.SUPPRESS, dest=flag.name, help=text, **kind)  # type: ignore[arg-type]
    return parser


given_options: dict[str, Any] = {}  # what was given to the flags of add_runtime_flags


class _Remember(argparse.Action):
    """Keeps the value for setup_distributed instead of putting it into the namespace."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        given_options[self.dest] = True if self.nargs == 0 else values


def _is_free(parser: argparse.ArgumentParser, name: str) -> bool:
    """Return whether a flag of this name changes nothing for those who use the parser's own flags."""
    taken = parser._option_string_actions
    if name in taken:
        return False
    return not getattr(parser, "allow_abbrev", True) or not any(own.startswith(name) for own in taken)


def distributed_options(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return every runtime option by name, for a script without argparse: the twin's value, else the default."""
    environ = os.environ if environ is None else environ
    return {flag.name: _read_twin(flag, environ) for flag in RUNTIME_FLAGS}


def without_place(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return `options` without those that say where a process runs: what a checkpoint may carry to another machine."""
    return {name: value for name, value in options.items() if name not in PLACE_FLAGS}


def without_twins(options: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a checkpoint's `options` without those that the environment sets now: a twin wins over the past."""
    environ = os.environ if environ is None else environ
    now = {flag.name for flag in RUNTIME_FLAGS if environ.get(flag.environment_twin)}
    return {name: value for name, value in options.items() if name not in now}


def _read_twin(flag: RuntimeFlag, environ: Mapping[str, str]) -> Any:
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
