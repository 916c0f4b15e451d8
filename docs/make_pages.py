"""Run the sessions that the pages show, and compare or renew their outputs: python docs/make_pages.py [--write]

A session is a block of README.md, README.zh-CN.md or a page in docs/ that follows a comment `<!-- run in FOLDER -->`.
It runs in a copy of FOLDER; blocks of one page with the same FOLDER run one after the other in one copy.

    ```console   `$ ` is before each command; what follows is its output on both streams. A line `...` is for all lines
                 that are left out: as many as now are kept before and after it.
    ```diff      the standard output of `retrofit convert train.py`
    ```python    a file, named in the comment: `<!-- run in FOLDER, file NAME -->`; it is written into the copy
    ```bash      commands whose output is not shown
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(
    r"<!-- run in (?P<folder>\S+?)(?:, file (?P<file>\S+))? -->\n```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S
)
LEFT_OUT = "..."
VARYING = re.compile(r"\d+(\.\d+)? s\b|\de-\d\d\b|\d\.\d{4,}")  # seconds, rounding errors, losses
CONVERT = "retrofit convert train.py"


@dataclass(frozen=True)
class Block:
    """A block of a session: its place in the text of the page, and what it holds."""

    start: int
    end: int
    folder: str
    file: str | None
    kind: str
    text: str


def pages(root: Path = ROOT) -> list[Path]:
    """Return the pages that may hold sessions."""
    return [*sorted(root.glob("README*.md")), *sorted(root.glob("docs/**/*.md"))]


def blocks(text: str) -> list[Block]:
    """Return the blocks of all sessions on a page."""
    return [
        Block(found.start("text"), found.end("text"), found["folder"], found["file"], found["kind"], found["text"])
        for found in BLOCK.finditer(text)
    ]


def renewed(text: str, root: Path = ROOT) -> str:
    """Return the text of a page with the outputs that its commands have now. Raises RuntimeError for a failure."""
    found = blocks(text)
    with tempfile.TemporaryDirectory() as top:
        new = {block: _renewed_block(block, _folder(block, Path(top), root), root) for block in found}
    for block in reversed(found):
        text = text[: block.start] + new[block] + text[block.end :]
    return text


def same(shown: str, real: str) -> bool:
    """Return whether two texts of a page differ in what varies from run to run only."""
    return VARYING.sub("#", shown) == VARYING.sub("#", real)


def run(command: str, folder: Path, root: Path = ROOT, *, errors: bool = True) -> tuple[int, str]:
    """Run a command of a page in `folder`, `retrofit` being that of `root`; return its status and its output."""
    tools = folder.parent / f"{folder.name} tools"
    tools.mkdir(exist_ok=True)
    (tools / "retrofit").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m retrofit "$@"\n')
    (tools / "retrofit").chmod(0o755)
    launcher = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    environ = {name: value for name, value in os.environ.items() if name not in launcher}
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), environ.get("PATH", "")])
    environ.update(PATH=path, PYTHONPATH=str(root), COLUMNS="100", CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    ended = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
        timeout=300,
        text=True,
    )
    lines = [line.rstrip() for line in ended.stdout.splitlines() if not line.startswith("[Gloo]")]  # of torch 2.8
    return ended.returncode, "".join(f"{line}\n" for line in lines)


def _folder(block: Block, top: Path, root: Path) -> Path:
    folder = top / block.folder.replace("/", "_")
    if not folder.exists():
        source = root / block.folder
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, folder, ignore=ignored) if source.is_dir() else folder.mkdir()
    return folder


def _renewed_block(block: Block, folder: Path, root: Path) -> str:
    if block.kind == "python":
        assert block.file
        (folder / block.file).write_text(block.text)
        return block.text
    if block.kind == "diff":
        return _required(CONVERT, folder, root, errors=False)
    if block.kind == "bash":
        for line in block.text.splitlines():
            _required(line, folder, root)
        return block.text
    return "".join(
        f"$ {command}\n{_shortened(_required(command, folder, root), shown)}" for command, shown in _commands(block)
    )


def _commands(block: Block) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def _required(command: str, folder: Path, root: Path, errors: bool = True) -> str:
    """Return the output of a command, which may end with status 1: findings. Raises RuntimeError."""
    status, output = run(command, folder, root, errors=errors)
    if status not in (0, 1) or "Traceback" in output:
        raise RuntimeError(f"{command}: status {status}\n{output}")
    return output


def _shortened(output: str, shown: str) -> str:
    """Return an output with as many lines left out as in the one that is shown."""
    if f"{LEFT_OUT}\n" not in shown:
        return output
    before, after = (part.splitlines() for part in shown.split(f"{LEFT_OUT}\n", 1))
    lines = output.splitlines()
    kept = [*lines[: len(before)], LEFT_OUT, *lines[len(lines) - len(after) :]]
    return "".join(f"{line}\n" for line in kept)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the sessions of the pages.")
    parser.add_argument("--write", action="store_true", help="renew the outputs (default: name the pages that differ)")
    args = parser.parse_args()
    differing = 0
    for page in pages():
        text = page.read_text(encoding="utf-8")
        new = renewed(text)
        if not same(text, new):
            differing += 1
            print(page.relative_to(ROOT))
            if args.write:
                page.write_text(new, encoding="utf-8")
    return 0 if args.write else min(differing, 1)


if __name__ == "__main__":
    sys.exit(main())
