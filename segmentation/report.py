"""Tables that a run prints: its options, its results, IoU per class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from segmentation.metrics import ConfusionMatrix


def print_summary(title: str, facts: Mapping[str, object]) -> None:
    """Print one table of `facts`."""
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column()
    table.add_column(overflow="fold")  # a path must stay readable to the end
    for name, value in facts.items():
        table.add_row(name, str(value))
    _print(table)


def print_options(changed: Sequence[tuple[str, Any, Any]], num_others: int) -> None:
    """Print the options of a run that are not at their defaults, as (name, value, default), and how many others are."""
    if not changed:
        print(f"options: all {num_others} at their defaults")
        return
    table = Table(title="options", caption=f"{num_others} others at their defaults", title_justify="left")
    for title in ("option", "value", "default"):
        table.add_column(title, overflow="fold")
    for row in changed:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    _print(table)


def print_classes(confusion: ConfusionMatrix, class_names: Sequence[str]) -> None:
    """Print IoU per class, mIoU and pixel accuracy; a class that occurs nowhere is shown as n/a."""
    table = Table(title=f"validation, {confusion.num_samples} images", title_justify="left")
    table.add_column("class", overflow="fold")
    table.add_column("IoU", justify="right")
    for name, iou in zip(class_names, confusion.iou().tolist()):
        table.add_row(name, "n/a" if iou != iou else f"{iou:.4f}")
    table.add_section()
    table.add_row("mIoU", f"{confusion.miou():.4f}")
    table.add_row("pixel accuracy", f"{confusion.pixel_accuracy():.4f}")
    _print(table)


def _print(table: Table) -> None:
    # A path or a class name is text: "[new]" is not a style, ":car:" is not an emoji.
    Console(markup=False, emoji=False, highlight=False).print(table)
