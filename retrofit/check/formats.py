"""Findings as text, as JSON, as annotations of GitHub, as SARIF 2.1.0."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from retrofit.analysis.files.source import printable
from retrofit.rules.catalog import CATALOG, TRACED
from retrofit.rules.finding import Finding

SCHEMA_VERSION = 1
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_text(findings: Sequence[Finding]) -> str:
    lines = []
    for finding in findings:
        lines.append(f"{finding.place}: {finding.code} {finding.message}")
        lines.append(f"    help: {finding.refusal or finding.help}")
    return "".join(f"{printable(line)}\n" for line in lines)


def as_json(findings: Sequence[Finding]) -> str:
    content = {"schema_version": SCHEMA_VERSION, "findings": [_record(finding) for finding in findings]}
    return json.dumps(content, indent=2) + "\n"


def as_github(findings: Sequence[Finding]) -> str:
    """Return workflow commands, which GitHub shows next to the lines of a pull request."""
    return "".join(
        f"::warning file={_escaped(f.place.path, True)},line={f.place.line},col={f.place.column},"
        f"title={f.code} {_escaped(CATALOG[f.code].name, True)}::{_escaped(f'{f.message}; {f.refusal or f.help}')}\n"
        for f in findings
    )


def as_sarif(findings: Sequence[Finding]) -> str:
    rules = [
        {"id": code, "name": rule.name, "shortDescription": {"text": rule.why}, "help": {"text": rule.remedy}}
        for code, rule in CATALOG.items()
        if rule.found_in != TRACED
    ]
    results = [
        {
            "ruleId": finding.code,
            "level": "warning",
            "message": {"text": f"{finding.message}; {finding.refusal or finding.help}"},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": finding.place.path.replace("\\", "/")},
                        "region": {"startLine": finding.place.line, "startColumn": finding.place.column},
                    }
                }
            ],
        }
        for finding in findings
    ]
    run = {"tool": {"driver": {"name": "retrofit", "rules": rules}}, "results": results}
    return json.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


FORMATS: dict[str, Callable[[Sequence[Finding]], str]] = {
    "text": as_text,
    "json": as_json,
    "github": as_github,
    "sarif": as_sarif,
}


def _record(finding: Finding) -> dict[str, Any]:
    return {
        "path": finding.place.path,
        "line": finding.place.line,
        "column": finding.place.column,
        "code": finding.code,
        "name": CATALOG[finding.code].name,
        "message": finding.message,
        "help": finding.refusal or finding.help,
        "fixable": finding.is_fixable,
    }


def _escaped(text: str, is_property: bool = False) -> str:
    """Return text for a workflow command (docs.github.com, "Workflow commands": %25, %0D, %0A; also : and ,)."""
    pairs = [("%", "%25"), ("\r", "%0D"), ("\n", "%0A"), *([(":", "%3A"), (",", "%2C")] if is_property else [])]
    for character, code in pairs:
        text = text.replace(character, code)
    return text
