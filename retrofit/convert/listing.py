"""What a conversion leaves as figures of one rank, in words: for the terminal and for MULTI_GPU.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from retrofit.rules import Finding

NOTHING = "**Figures.** None was found that is of one process's share of the samples."
HEAD = """\
**Figures of rank 0's share.** These places, in the converted files, show, keep or decide by something that is
computed from the samples of one process, not from all of them:
"""


def lines(listed: Sequence[Finding]) -> Iterator[str]:
    """Yield a line for each figure of one rank; places are those in the converted files."""
    if listed:
        yield "figures of one rank, by their lines in the converted files:"
        yield from (f"{finding.place.path}:{finding.place.line}: {finding.message}" for finding in listed)


def figures(listed: Sequence[Finding]) -> str:
    """Return the part of MULTI_GPU.md about figures of one rank."""
    if not listed:
        return NOTHING
    return "\n".join([HEAD, *(f"- `{f.place.path}:{f.place.line}`: {_figure(f)}" for f in listed)])


def _figure(finding: Finding) -> str:
    """Return what a figure is, as text that Markdown does not take for markup."""
    message = finding.message.partition(": ")[2] or finding.message
    name, comma, verb = message.rpartition(", ")
    quoted = name.replace("`", "'")
    return f"`{quoted}`, {verb}" if comma else message
