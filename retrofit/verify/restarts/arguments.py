"""Arguments with which a script continues from a checkpoint, found in the options of its parser.

A name that says so is believed. What is only likely is tried, and counts where the run continues the training.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from retrofit.verify.trace.events import ParserOption

SURE, LOADS, CONTINUES = 0, 1, 2  # what a run must show: nothing, that it loads the checkpoint, that it continues
CHECKPOINT, FOLDER, NUMBER = "{checkpoint}", "{folder}", "{number}"  # its path, the folder it is in, its number
RESUMES = re.compile(
    r"^(auto_?)?resume(_(from|path|file|ckpt|checkpoint|snapshot|dir|folder|model|training|train))*$"
    r"|^continue(_(from|training|train|checkpoint|ckpt))+$"
)
NUMBERED = re.compile(r"resume\w*(epoch|step|iter)|(epoch|step|iter)\w*resume")
HOLDS_CHECKPOINT = re.compile(
    r"^((load|init|start|restore)_)?(from_)?(ckpt|checkpoint|snapshot)(_(path|file|dir|folder|name))?$"
    r"|^(load|restore|start)(_(from|path|file|model|checkpoint|ckpt))?$"
)
SAYS_RESUME = re.compile(r"\bresum|\bcontinue (training|from)|\brestart(ed|s)? from", re.IGNORECASE)
OF_FOLDER = re.compile(r"\b(dir|directory|folder)\b|_(dir|folder)\b", re.IGNORECASE)
CHOICES = ("resume", "continue")


@dataclass(frozen=True)
class Form:
    """Arguments with CHECKPOINT, FOLDER or NUMBER in them, and what a run with them must show."""

    arguments: tuple[str, ...]
    needs: int  # SURE, LOADS or CONTINUES


def forms(options: Sequence[ParserOption]) -> list[Form]:
    """Return the ways to continue that the options of a parser offer, the likeliest first, each once."""
    found = [*_named(options), *_likely(options), Form((), CONTINUES)]
    return sorted(dict.fromkeys(found), key=lambda form: form.needs)


def _named(options: Sequence[ParserOption]) -> Iterator[Form]:
    """Yield the forms of options that are named after what they do."""
    for option in sorted(options, key=lambda option: len(_name(option))):
        name, flag = _name(option), _flag(option)
        if flag is None or not RESUMES.match(name):
            continue
        if not option.takes_value:
            holders = [other for other in options if other.takes_value and HOLDS_CHECKPOINT.match(_name(other))]
            yield Form((flag,), LOADS if holders else SURE)
            for other in holders:
                yield Form((flag, _flag(other) or "", _place(other)), LOADS)
        elif "auto" in (option.choices or ()):
            yield Form((flag, "auto"), SURE)
        else:
            yield Form((flag, CHECKPOINT), SURE)
            for value in (FOLDER, "True", "1"):
                yield Form((flag, value), LOADS)


def _likely(options: Sequence[ParserOption]) -> Iterator[Form]:
    """Yield the forms of options that may be meant for it."""
    for option in options:
        name, flag = _name(option), _flag(option)
        if flag is None or RESUMES.match(name) or not option.takes_value:
            continue
        if NUMBERED.search(name):
            yield Form((flag, NUMBER), LOADS)
        for choice in CHOICES:
            if choice in (option.choices or ()) or re.search(rf"['\"|]{choice}['\"|]", option.help):
                yield Form((flag, choice), LOADS)
        if option.choices is None and (HOLDS_CHECKPOINT.match(name) or SAYS_RESUME.search(option.help)):
            yield Form((flag, _place(option)), CONTINUES)


def _place(option: ParserOption) -> str:
    return FOLDER if OF_FOLDER.search(f"{_name(option)} {option.help}") else CHECKPOINT


def _name(option: ParserOption) -> str:
    """Return the name of a long flag as a variable has it."""
    return (_flag(option) or "").lstrip("-").replace("-", "_").lower()


def _flag(option: ParserOption) -> str | None:
    """Return the flag that says most of what the option does; None for a positional argument."""
    named = [flag for flag in option.flags if "resume" in flag]
    return next(iter([*named, *sorted(option.flags, key=len, reverse=True)]), None)
