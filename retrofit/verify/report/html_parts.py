"""Elements of the HTML pages of `verify` and `why`: no script, no link, nothing to load; light, dark and on paper."""

from __future__ import annotations

import contextlib
import html
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from retrofit.verify.verdict import printable


class Html(str):
    """Text that is HTML already; all other text is escaped when it enters an element."""


def write_page(path: str | Path, text: str) -> None:
    """Write a page to `path`, through a temporary file and a rename; makes the folder.

    Raises OSError that names the file; what was at `path` is then unchanged.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise OSError(f"could not write {path}: {error.strerror}; make room or name another place") from error


def page(title: str, body: Html) -> str:
    """Return a whole page."""
    head = element(
        "head",
        Html('<meta charset="utf-8">'),
        # Belt and braces: even a mistake in the escaping could not load or run anything.
        Html(
            '<meta http-equiv="Content-Security-Policy" '
            "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
        ),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html('<meta name="color-scheme" content="light dark">'),
        element("title", title),
        element("style", Html(STYLE)),
    )
    return f'<!DOCTYPE html>\n<html lang="en">\n{head}\n{body}\n</html>\n'


def element(name: str, *children: str, kind: str = "") -> Html:
    """Return an element of class `kind` around `children`; what is not Html is escaped, and keeps its lines."""
    inner = "".join(child if isinstance(child, Html) else html.escape(printable(child)) for child in children)
    attribute = f' class="{kind}"' if kind else ""
    return Html(f"<{name}{attribute}>{inner}</{name}>\n")


def section(title: str, content: Html) -> Html:
    return element("section", element("h2", title), content)


def command_line(text: str) -> Html:
    """Return a command line that breaks between its words, not after the hyphens of a flag."""
    words = [element("span", word).rstrip() for word in text.split()]
    return Html(f"<code>{' '.join(words)}</code>")


def fact_list(facts: Mapping[str, object]) -> Html:
    """Return names and values as a list; nothing without facts."""
    pairs = [
        element("div", element("dt", name), element("dd", value if isinstance(value, str) else str(value)))
        for name, value in facts.items()
    ]
    return element("dl", *pairs) if pairs else Html("")


def table_of(titles: Iterable[str], rows: Iterable[Html], kind: str) -> Html:
    head = element("thead", element("tr", *(element("th", title) for title in titles)))
    return element("table", head, element("tbody", *rows), kind=kind)


STYLE = """
:root {
  color-scheme: light dark;
  --page: #f5f6f8; --card: #ffffff; --ink: #1b1f24; --soft: #57606a; --line: #d9dee4; --track: #e9ecf0;
  --pass: #116329; --pass-back: #dcf3e2; --fail: #a40e26; --fail-back: #fde3e5;
  --accepted: #7a4b00; --accepted-back: #fcefc9; --none: #57606a; --none-back: #e9ecf0;
  --one: #2b7fc4; --many: #c2410c; --loss: #6d3fc0; --parameters: #0b7a5c;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --page: #101317; --card: #191d23; --ink: #e8ebef; --soft: #a2abb6; --line: #343b45; --track: #262c34;
    --pass: #7ee2a0; --pass-back: #12331f; --fail: #ff9aa5; --fail-back: #45161d;
    --accepted: #f3c969; --accepted-back: #3b2d0b; --none: #a2abb6; --none-back: #262c34;
    --one: #58a6ff; --many: #ff9d5c; --loss: #b794f6; --parameters: #3fcf9e;
  }
}
:root {
  --chart-ink: var(--ink); --chart-grid: var(--line); --chart-card: var(--card); --chart-track: var(--track);
  --chart-one: var(--one); --chart-many: var(--many); --chart-loss: var(--loss);
  --chart-parameters: var(--parameters); --chart-failure: var(--fail);
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 24px clamp(12px, 3vw, 32px) 48px; max-width: 1200px; overflow-wrap: anywhere;
  background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
h1, h2, h3, p, dl, dd, ul, figure { margin: 0; }
h1 { font-size: 1.6em; line-height: 1.35; font-weight: 650; }
h2 { font-size: 1.2em; margin: 32px 0 10px; }
h3 { font-size: 1em; }
code { font: 0.9em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre-wrap; }
code span { display: inline-block; max-width: 100%; }
header, table, figure, article, section > ul, section > dl, section > p {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px;
}
article { padding: 14px 22px; margin-bottom: 12px; }
article h3 { margin-bottom: 8px; }
a { color: inherit; }
header { padding: 18px 22px 20px; border-left: 6px solid var(--none); }
header.pass { border-left-color: var(--pass); }
header.fail { border-left-color: var(--fail); }
.product { color: var(--soft); font-size: 0.87em; margin-bottom: 6px; }
.badge {
  display: inline-block; padding: 1px 9px; border-radius: 6px; font-size: 0.8em; font-weight: 700; line-height: 1.6;
  letter-spacing: 0.03em; white-space: nowrap; color: var(--none); background: var(--none-back);
}
h1 .badge { font-size: 0.85em; margin-right: 4px; }
.badge.pass { color: var(--pass); background: var(--pass-back); }
.badge.fail { color: var(--fail); background: var(--fail-back); }
.badge.accepted, .badge.not-judged, .badge.incomplete { color: var(--accepted); background: var(--accepted-back); }
dl > div { display: grid; grid-template-columns: 6.4em 1fr; gap: 12px; padding: 2px 0; }
dt { color: var(--soft); }
dd, td p { white-space: pre-line; }
header dl { margin-top: 14px; font-size: 0.93em; }
section > ul, section > dl, section > p { padding: 14px 22px; }
section > ul { padding-left: 38px; }
table { width: 100%; border-collapse: separate; border-spacing: 0; }
th, td { padding: 8px 14px; text-align: left; vertical-align: top; border-top: 1px solid var(--line); }
thead th { border-top: 0; color: var(--soft); font-size: 0.87em; font-weight: 500; }
tbody th { font-weight: 600; }
td.number { white-space: nowrap; font-variant-numeric: tabular-nums; }
.runs thead th, .runs tbody th { white-space: nowrap; }
.runs td:nth-child(4) { min-width: 150px; }
.checks td:first-child { width: 1%; }
.checks tbody th { width: 34%; }
.checks th code { display: block; color: var(--soft); font-weight: 400; }
.checks td dl { margin-top: 8px; font-size: 0.93em; }
tr.not-applicable th, tr.not-applicable td { color: var(--soft); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 16px; }
figure { padding: 14px 16px 12px; }
figcaption p { color: var(--soft); font-size: 0.87em; margin-bottom: 8px; }
figure svg { display: block; width: 100%; height: auto; overflow: visible; }
figure svg text { font-family: inherit !important; }
@media screen and (max-width: 640px) {
  h1 { font-size: 1.3em; }
  thead { display: none; }
  table, tbody, tr, th, td { display: block; }
  tr { padding: 12px 14px; border-top: 1px solid var(--line); }
  tbody tr:first-child { border-top: 0; }
  th, td, .checks td:first-child, .checks tbody th { width: auto; padding: 2px 0; border: 0; }
  .runs td:nth-child(2)::before { content: "Processes: "; }
  .runs td:nth-child(3)::before { content: "Time: "; }
  .runs td.number::before { color: var(--soft); }
  dl > div { grid-template-columns: 5.6em 1fr; gap: 8px; }
}
@media print {
  body { max-width: none; padding: 0; background: none; font-size: 11px; }
  .figures { grid-template-columns: 1fr 1fr; }
  tr, figure, dl > div { break-inside: avoid; }
  h2 { break-after: avoid; }
  .badge { border: 1px solid currentColor; }
}
"""
