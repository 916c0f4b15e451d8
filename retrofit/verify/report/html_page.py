"""The report of `retrofit verify` as one HTML file: no script, no link, nothing to load; light, dark and on paper."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from retrofit.verify.verdict import (
    ACCEPTED,
    FAIL,
    INTERNAL_ERROR,
    NOT_APPLICABLE,
    PASS,
    Report,
    Verdict,
    cause_heading,
    count,
    counts,
    duration,
    overall_status,
    printable,
)

from .charts import Chart, draw_charts
from .conclusion import conclusion, meaning
from .faults import Fault, faults
from .html_parts import Html, command_line, element, fact_list, page, section, table_of, write_page
from .remedies import remedy

if TYPE_CHECKING:
    from retrofit.rules.catalog import Rule


def write_html(report: Report, path: str | Path, causes: Mapping[str, Rule]) -> None:
    """Write the page of `report` to `path`, through a temporary file and a rename; makes the folder.

    Raises OSError that names the file; what was at `path` is then unchanged.
    """
    text = report_as_html(report, causes)
    write_page(path, text)


def report_as_html(report: Report, causes: Mapping[str, Rule]) -> str:
    """Return the page of `report`."""
    status = overall_status(report.verdicts)
    body = element(
        "body",
        _header(report, status),
        element(
            "main",
            _faults(report, causes),
            section("Checks", _verdicts(report.verdicts)),
            section("Curves and samples", element("div", *map(_figure, draw_charts(report)), kind="figures")),
            section("Runs", _runs(report)),
            section("What was controlled", _controls(report)),
            _rules(report, causes),
            section("Environment", fact_list(report.environment)),
        ),
    )
    return page(f"{status}: retrofit verify {report.script}", body)


def _header(report: Report, status: str) -> Html:
    sentence = conclusion(report)[len(status) + 2 :]  # the word itself is the badge
    kind = "badge " + _kind(status)
    facts = {
        "Script": command_line(report.command),
        "Compared": f"{count(report.world_size, 'process', 'processes')} with 1",
        "Checks": counts(report.verdicts),
        "Time": duration(report.seconds),
        **report.made,
    }
    if meaning(report):
        facts["Meaning"] = meaning(report)
    return element(
        "header",
        element("p", "retrofit verify", kind="product"),
        element("h1", element("span", status, kind=kind), " ", sentence),
        fact_list(facts),
        kind=_kind(status),
    )


def _faults(report: Report, causes: Mapping[str, Rule]) -> Html:
    """Return what is wrong, one card for each cause; nothing where no check failed."""
    cards = [_fault(fault, report, causes) for fault in faults(report.verdicts)]
    return section("What is wrong", Html("".join(cards))) if cards else Html("")


def _fault(fault: Fault, report: Report, causes: Mapping[str, Rule]) -> Html:
    verdict = fault.verdict
    rule = causes.get(verdict.cause or "")
    facts: dict[str, str | None] = {"Where": verdict.place, "Value": verdict.value}
    if verdict.step is not None:
        facts["First step"] = str(verdict.step)
    if verdict.cause:
        heading = element("strong", cause_heading(verdict.cause, causes))
        link = Html(f'<a href="#{html.escape(verdict.cause)}">{heading.rstrip()}</a>') if rule else heading
        facts["Cause"] = Html(link + element("span", f" {rule.why}" if rule else ""))
    if rule:
        facts["Remedy"] = remedy(rule, report.dialect)
    facts["Note"] = verdict.note
    facts["Explains"] = ", ".join(other.title for other in fault.explains)
    shown = {name: text for name, text in facts.items() if text}
    return element("article", element("h3", verdict.summary), fact_list(shown))


def _rules(report: Report, causes: Mapping[str, Rule]) -> Html:
    """Return the rules that the checks name, in all words: what the links of the page lead to."""
    named = sorted({verdict.cause for verdict in report.verdicts if verdict.cause} & set(causes))
    entries = []
    for code in named:
        rule = causes[code]
        facts = {"Why": rule.why, "With the runtime": rule.remedy, "In plain torch": rule.in_torch}
        heading = Html(f'<h3 id="{html.escape(code)}">{html.escape(printable(cause_heading(code, causes)))}</h3>\n')
        entries.append(element("article", heading, fact_list(facts)))
    return section("Rules", Html("".join(entries))) if entries else Html("")


def _verdicts(verdicts: Sequence[Verdict]) -> Html:
    """Return the table of the checks, what needs attention first; those with nothing to judge are one row."""
    order = (INTERNAL_ERROR, FAIL, ACCEPTED, PASS)
    judged = [verdict for verdict in verdicts if verdict.status != NOT_APPLICABLE]
    without = [verdict for verdict in verdicts if verdict.status == NOT_APPLICABLE]
    rows = [
        _row(verdict.status, verdict.title, verdict.check, element("p", verdict.summary) + _details(verdict))
        for verdict in sorted(judged, key=lambda verdict: order.index(verdict.status))
    ]
    if without:
        reasons = fact_list({verdict.check: verdict.summary for verdict in without})
        rows.append(_row(NOT_APPLICABLE, f"{count(len(without), 'check')} without anything to judge", "", reasons))
    if not rows:
        return element("p", "No check was made.")
    return table_of(("Status", "Check", "Found"), rows, kind="checks")


def _row(status: str, title: str, check: str, found: str) -> Html:
    return element(
        "tr",
        element("td", element("span", status, kind="badge " + _kind(status))),
        element("th", title, element("code", check) if check else Html("")),
        element("td", Html(found)),
        kind=_kind(status),
    )


def _details(verdict: Verdict) -> Html:
    """Return where a check broke, the values there, and its note; nothing for a check that is in order."""
    facts: dict[str, str] = {}
    if verdict.status == ACCEPTED and verdict.step is not None:
        facts["First step"] = str(verdict.step)
    if verdict.status == ACCEPTED and verdict.value:
        facts["Value"] = verdict.value
    if verdict.cause and verdict.status in (FAIL, ACCEPTED):
        facts["Cause"] = verdict.cause
    if verdict.note and verdict.status != FAIL:
        facts["Note"] = verdict.note
    return fact_list(facts)


def _figure(chart: Chart) -> Html:
    words = element("figcaption", element("h3", chart.title), element("p", chart.text))
    return element("figure", words, Html(chart.svg))


def _runs(report: Report) -> Html:
    if not report.runs:
        return element("p", "No run was recorded.")
    rows = [
        element(
            "tr",
            element("th", run.name),
            element("td", str(run.world_size), kind="number"),
            element("td", duration(run.seconds), kind="number"),
            element("td", run.status),
            element("td", command_line(run.command)),
        )
        for run in report.runs
    ]
    return table_of(("Run", "Processes", "Time", "Ended", "Command"), rows, kind="runs")


def _controls(report: Report) -> Html:
    if not report.controls:
        return element("p", "Nothing: every run was the script as it is.")
    return element("ul", *(element("li", control) for control in report.controls))


def _kind(status: str) -> str:
    return status.lower().replace(" ", "-")
