"""Comments that suppress a finding: `# retrofit: ignore[RF103]` on its line, or without codes for all."""

from __future__ import annotations

import re
from collections.abc import Iterable

from retrofit.rules.finding import Finding
from retrofit.training import Source

COMMENT = re.compile(r"#\s*retrofit:\s*ignore(?:\[([A-Z0-9, ]*)\])?", re.IGNORECASE)


def without_ignored(findings: Iterable[Finding], sources: Iterable[Source]) -> list[Finding]:
    """Return the findings that no comment on their line suppresses."""
    codes = {source.name: _codes_by_line(source) for source in sources}
    return [finding for finding in findings if not _is_ignored(finding, codes.get(finding.place.path, {}))]


def _codes_by_line(source: Source) -> dict[int, set[str]]:
    """Return the codes that are ignored on each line; an empty set means every code."""
    found: dict[int, set[str]] = {}
    if "ignore" not in source.text:
        return found
    for line, comment in source.comments():
        match = COMMENT.search(comment)
        if match:
            found[line] = {code.strip().upper() for code in (match[1] or "").split(",") if code.strip()}
    return found


def _is_ignored(finding: Finding, codes: dict[int, set[str]]) -> bool:
    ignored = codes.get(finding.place.line)
    return ignored is not None and (not ignored or finding.code in ignored)
