"""The options of the script's own argument parser."""

from __future__ import annotations

import argparse
import functools
from itertools import islice
from typing import Any

from retrofit.verify.trace.events import LOCAL_RANK, ParserOption, ParserUse, Record
from retrofit.verify.trace.recorder import own_errors_recorded

MOST_CHOICES = 100


def install_parser(record: Record) -> None:
    """Record a ParserUse for each ArgumentParser, before it parses for the first time.

    A script may have several: a small one for --config, one per sub-command.
    """
    parse_known_args, parse_args = argparse.ArgumentParser.parse_known_args, argparse.ArgumentParser.parse_args
    known: dict[int, argparse.ArgumentParser] = {}  # which keeps them, so that no other parser gets the same id
    strict: set[int] = set()

    @functools.wraps(parse_known_args)
    def traced_known(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        if id(self) not in known:
            known[id(self)] = self
            with own_errors_recorded():
                accepts = {flag: flag in self._option_string_actions for flag in LOCAL_RANK}
                options = [_option(action) for action in self._actions]
                record(ParserUse(options, accepts, refuses_unknown=id(self) in strict))
        return parse_known_args(self, *args, **kwargs)

    @functools.wraps(parse_args)
    def traced_args(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        strict.add(id(self))
        return parse_args(self, *args, **kwargs)

    argparse.ArgumentParser.parse_known_args = traced_known  # type: ignore[method-assign]
    argparse.ArgumentParser.parse_args = traced_args  # type: ignore[method-assign]


def _option(action: argparse.Action) -> ParserOption:
    return ParserOption(
        flags=list(action.option_strings),
        dest=action.dest,
        takes_value=action.nargs != 0,
        help="" if action.help in (None, argparse.SUPPRESS) else str(action.help),
        choices=_choices(action.choices),
    )


def _choices(choices: Any) -> list[str] | None:
    try:
        return None if choices is None else [str(choice) for choice in islice(choices, MOST_CHOICES)]
    except TypeError:  # argparse itself asks for `in` only
        return None
