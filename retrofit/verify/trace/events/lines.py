"""Lines of a trace file: one per event."""

from __future__ import annotations

import json

from . import computation, output, samples  # noqa: F401 - they define kinds of events
from .event import Event
from .process import ParserOption, ScriptError

KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in Event.__subclasses__()}


def line_of(event: Event, seconds: float, step: int) -> str:
    """Return the line of an event, with its line end."""
    return _encode({"event": type(event).__name__, "seconds": seconds, "step": step, **vars(event)}) + "\n"


def line_start(kind: type[Event]) -> str:
    """Return how every line of a kind begins: counting them needs no parser."""
    return f'{{"event": "{kind.__name__}",'


def event_of(line: str) -> Event | None:
    """Return the event of a line; None for a kind that is not in KINDS.

    Raises ValueError for a line that is not an event: the last one of a process that was killed can be torn.
    """
    try:
        fields = _decode(line)
        kind = KINDS.get(fields.pop("event"))
        return None if kind is None else kind.restored(fields)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not an event: {error!r}") from error


def _plain(value: object) -> object:
    """Return what JSON writes for a value that it does not know."""
    return vars(value) if isinstance(value, (ScriptError, ParserOption)) else str(value)


_encode = json.JSONEncoder(default=_plain).encode
_decode = json.JSONDecoder().decode
