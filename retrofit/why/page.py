"""The card of a run as one HTML page, in the style of verify's: nothing to load, light, dark and on paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from retrofit.verify.report.html_parts import (
    Html,
    command_line,
    element,
    fact_list,
    page,
    section,
    table_of,
    write_page,
)
from retrofit.verify.verdict import count

from .analysis.causes import Cause, causes_of
from .analysis.picture import Picture
from .analysis.remedies import Remedy, remedies_for
from .analysis.waterfall import Row, waterfall
from .charts import parts, timeline
from .report import headline, speedup_text


def write_card(path: Path, picture: Picture, made: Mapping[str, str]) -> None:
    """Write the page to `path`; `made` says how, when and from what. Raises OSError that names the file."""
    write_page(path, card_as_html(picture, made))


def card_as_html(picture: Picture, made: Mapping[str, str]) -> str:
    """Return the page of a run."""
    causes = causes_of(picture)
    rows = waterfall(picture)
    body = element(
        "body",
        _header(picture, made),
        element(
            "main",
            section("Causes", _causes(picture, causes)),
            section("Remedies", _remedies(picture, remedies_for(picture, causes))),
            section("Where the time of a step goes", _parts(rows)),
            section("One step", element("figure", Html(timeline(picture)))),
            section("Against one process", element("figure", Html(parts(picture, rows)))),
        ),
    )
    return page(f"{speedup_text(picture)}: retrofit why", body)


def _header(picture: Picture, made: Mapping[str, str]) -> Html:
    facts = {name: command_line(text) if name == "Script" else text for name, text in made.items()}
    facts["Compared"] = f"{len(picture.steps)} steps on {count(picture.world_size, 'process', 'processes')}"
    words = element("p", "retrofit why", kind="product"), element("h1", headline(picture))
    return element("header", *words, fact_list(facts))


def _causes(picture: Picture, causes: Sequence[Cause]) -> Html:
    if not causes:
        return element("p", "No cause is found: the ranks are even, and nothing holds them up.")
    return Html("".join(_cause(picture, cause) for cause in causes))


def _cause(picture: Picture, cause: Cause) -> Html:
    share = cause.seconds / picture.seconds
    facts = {"Costs": f"{1e3 * cause.seconds:.1f} ms, {share:.0%} of a step", "Measured": cause.evidence}
    return element("article", element("h3", cause.summary), fact_list(facts))


def _remedies(picture: Picture, remedies: Sequence[Remedy]) -> Html:
    if not remedies:
        return element("p", "None that would save 1 % of a step.")
    rows = [
        _row(
            remedy.what,
            _ms(remedy.seconds),
            f"{remedy.seconds / picture.seconds:.0%}",
            _ms(remedy.step_seconds(picture)),
            text=remedy.basis,
        )
        for remedy in remedies
    ]
    return table_of(("Each alone", "Saves", "Of a step", "Step then", "Predicted from"), rows, kind="remedies")


def _parts(rows: Sequence[Row]) -> Html:
    whole = sum(row.seconds for row in rows)
    shown = [
        _row(row.name, _ms(row.seconds), f"{row.seconds / whole:.1%}", _ms(row.single), _ms(row.lost)) for row in rows
    ]
    return table_of(("Part", "Time", "Of a step", "One process", "Lost"), shown, kind="parts")


def _row(name: str, *numbers: str, text: str = "") -> Html:
    cells = [element("td", number, kind="number") for number in numbers]
    return element("tr", element("th", name), *cells, *([element("td", text)] if text else []))


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.2f} ms"
