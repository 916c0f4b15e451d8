"""A figure of matplotlib as inline SVG, for a page that chooses its colours.

Colours are CSS variables (`var(--chart-ink)`, see COLOURS), so that the page chooses them for screen, dark mode and
paper; text stays text, in the font of the page. matplotlib is imported when a figure is drawn, and neither its
global state nor the user's matplotlibrc plays a part.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# matplotlib knows no CSS variables: each appears in a figure as a colour that nothing else uses.
COLOURS = {
    name: f"#01020{number}"
    for number, name in enumerate(("ink", "grid", "card", "track", "one", "many", "loss", "parameters", "failure"))
}
WIDTH = 6.2  # inches; one column of the page


def as_svg(draw: Callable[[Figure], None], height: float, prefix: str, label: str, width: float = WIDTH) -> str:
    """Return what `draw` puts on a figure of this size (inches) as an `<svg>` element that fits inside a page."""
    import matplotlib
    from matplotlib.figure import Figure

    buffer = io.StringIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_settings())
        figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
        draw(figure)
        # Without metadata: it would hold links, and the date would make equal reports differ.
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    # Several figures share one page, where an id must not occur twice; most are used by nothing.
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', svg))
    svg = re.sub(r' id="([^"]+)"', lambda found: found.group() if found.group(1) in used else "", svg)
    svg = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    for name, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--chart-{name})")
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)  # the page decides; the viewBox keeps the shape
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def _settings() -> Any:
    ink, grid = COLOURS["ink"], COLOURS["grid"]
    return {
        "svg.fonttype": "none",  # <text>, not outlines
        "svg.hashsalt": "retrofit",  # equal figures get equal ids
        "font.size": 9.5,
        "text.color": ink,
        "axes.labelcolor": ink,
        "axes.edgecolor": grid,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.formatter.useoffset": False,
        "axes.formatter.use_mathtext": False,
        "grid.color": grid,
        "grid.linewidth": 0.6,
        "xtick.color": grid,
        "xtick.labelcolor": ink,
        "ytick.color": grid,
        "ytick.labelcolor": ink,
        "axes.titlesize": "medium",
        "legend.frameon": False,
        "legend.borderaxespad": 0.2,
        "legend.columnspacing": 1.0,
        "legend.handlelength": 1.7,
        "legend.handletextpad": 0.5,
    }
