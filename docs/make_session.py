"""Draw docs/session.svg, a recording of check, convert and verify on docs/demo: python docs/make_session.py"""

from __future__ import annotations

import html
import io
import re
import shutil
import tempfile
import textwrap
from pathlib import Path

from make_pages import ROOT, run
from rich.console import Console
from rich.text import Text

OUTPUT = ROOT / "docs" / "session.svg"
WIDTH = 112
COMMANDS = {  # the lines that are shown of each output, at its beginning and at its end
    "retrofit check train.py": (4, 1),
    "retrofit convert train.py --write": (30, 1),
    "retrofit verify train.py --original before.py 2> /dev/null": (6, 2),
}
STYLES = {
    r"^\$ .*": "bold",
    r"^\+.*": "green",
    r"^-.*": "red",
    r"^@@.*": "cyan",
    r"\bRF\d+\b": "yellow",
    "PASS": "green",
}
LEFT_OUT = "..."


def recorded() -> list[str]:
    """Return the lines of the recording, from real runs in a copy of docs/demo."""
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as top:
        folder = Path(shutil.copytree(ROOT / "docs" / "demo", Path(top) / "demo"))
        shutil.copy(folder / "train.py", folder / "before.py")
        for command, (first, last) in COMMANDS.items():
            output = run(command, folder)[1].splitlines()
            shown = output if len(output) <= first + last + 1 else [*output[:first], LEFT_OUT, *output[-last:]]
            wrapped = [part for line in shown for part in wrapped_line(line)]
            lines += [f"$ {command.partition(' 2>')[0]}", *wrapped, ""]
    return lines[:-1]


def wrapped_line(line: str) -> list[str]:
    """Return the lines of the picture for one of an output; what is left over is indented as its beginning."""
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent) or [""]


def drawn(lines: list[str]) -> str:
    """Return the picture of a terminal with these lines."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in lines:
        text = Text(line, no_wrap=True, overflow="crop")
        for pattern, style in STYLES.items():
            text.highlight_regex(pattern, style)
        console.print(text, highlight=False)
    return console.export_svg(title="check, convert, verify", unique_id="session") + "\n"


def shown_in(picture: str) -> list[str]:
    """Return the lines that a picture shows."""
    lines: dict[float, str] = {}
    for y, text in re.findall(r'<text class="session-r\d+"[^>]* y="([\d.]+)"[^>]*>(.*?)</text>', picture):
        lines[float(y)] = lines.get(float(y), "") + html.unescape(text).replace("\xa0", " ").rstrip("\n")
    return [lines[y].rstrip() for y in sorted(lines)]


if __name__ == "__main__":
    OUTPUT.write_text(drawn(recorded()), encoding="utf-8")
