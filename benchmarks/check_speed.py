"""Measure `retrofit check`: seconds of a whole run, lines per second by the size of the project, and TorchFix's time.

  python benchmarks/check_speed.py                              everything, with docs/check_speed.png
  python benchmarks/check_speed.py --sizes 500 5000 --rounds 3  less
  python benchmarks/check_speed.py --before DIR --scripts FILE  this checkout and another one, on the same scripts

Each round starts all commands in turn, so that a noisy machine disturbs all equally; the median of the rounds is given,
and the median of the ratios round by round. TorchFix is installed into a virtual environment in a temporary folder.
With --before, neither TorchFix nor the start-up is measured, and the seconds are those of the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from generated_project import write_project
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from retrofit.training import read_project

ROOT = Path(__file__).resolve().parents[1]
PYTHON = [sys.executable]
RETROFIT = [*PYTHON, "-m", "retrofit", "check"]
REFERENCE = ROOT / "train.py"
TICKS = [0.1, 0.3, 1, 3, 10, 30, 100, 300]  # seconds


def main() -> int:
    args = get_arguments()
    if args.before:
        compare(args)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        torchfix = install_torchfix(Path(folder, "venv")) if args.torchfix else None
        projects = {}
        for size in args.sizes:
            script, lines = write_project(Path(folder, f"project {size}"), size)
            projects[lines] = script
        figures = {
            "environment": environment(),
            "start-up": measure_start_up(projects, args.rounds),
            "sizes": measure_sizes(projects, torchfix, args.rounds),
        }
    print_report(figures)
    if args.output:
        args.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    plot(figures, args.picture)
    return 0


def get_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = [500, 1000, 2000, 5000, 10_000, 20_000, 50_000]
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=sizes, help="lines of the projects (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="of which the median counts (default: %(default)s)")
    parser.add_argument(
        "--no-torchfix", dest="torchfix", action="store_false", help="install and measure retrofit only"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the figures there as JSON (default: no)")
    parser.add_argument(
        "--picture", type=Path, default=ROOT / "docs" / "check_speed.png", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--before", type=Path, metavar="DIR", help="a checkout to compare this one with (default: none)"
    )
    parser.add_argument(
        "--scripts", type=Path, nargs="+", default=[], metavar="FILE", help="to compare on, next to those of --sizes"
    )
    args = parser.parse_args()
    if args.scripts and not args.before:
        parser.error("--scripts are compared on: name the other checkout with --before DIR")
    return args


def environment() -> dict[str, Any]:
    """Return what the figures depend on."""
    machine = f"{platform.system()} {platform.machine()}"
    return {
        "python": platform.python_version(),
        "machine": machine,
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }


def install_torchfix(folder: Path) -> list[str]:
    """Return the command of a TorchFix in a virtual environment of its own, with this Python and one process."""
    subprocess.run([*PYTHON, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-q", "torchfix"], check=True, stderr=subprocess.DEVNULL)
    version = [str(python), "-c", "from importlib.metadata import version; print(version('torchfix'))"]
    print("TorchFix", subprocess.run(version, check=True, capture_output=True, text=True).stdout.strip())
    return [str(python), "-m", "torchfix", "-j", "1"]


def seconds(command: list[str], folder: Path = ROOT) -> float:
    """Return the time of a command in a folder; it may find something (status 1), not fail."""
    started = time.perf_counter()
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    taken = time.perf_counter() - started
    if result.returncode not in (0, 1) or "Traceback" in result.stderr:
        raise RuntimeError(f"{command} failed with status {result.returncode}:\n{result.stderr}")
    return taken


def measure(commands: dict[str, list[str]], rounds: int) -> dict[str, list[float]]:
    """Run all commands in turn, `rounds` times after a warm-up, and return the seconds of each."""
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for number in tqdm(range(rounds + 1), unit="rounds"):
        for name, command in commands.items():
            value = seconds(command)
            if number:
                taken[name].append(value)
    return taken


def measure_start_up(projects: dict[int, Path], rounds: int) -> dict[str, Any]:
    """Return the time of a check next to that of Python alone."""
    files = read_project(REFERENCE, ROOT).sources
    reference = f"{len(files)} files, {sum(source.text.count(source.newline) for source in files)} lines"
    smallest = min(projects)
    commands = {
        "python -c pass": [*PYTHON, "-c", "pass"],
        "python -c 'import ast'": [*PYTHON, "-c", "import ast"],
        f"retrofit check train.py, the reference project: {reference}": [*RETROFIT, str(REFERENCE)],
        f"retrofit check of a generated project: {smallest} lines": [*RETROFIT, str(projects[smallest])],
    }
    taken = measure(commands, rounds * 2)
    base = taken["python -c pass"]
    return {
        name: {
            "seconds": statistics.median(values),
            "over python -c pass": statistics.median(a / b for a, b in zip(values, base)),
        }
        for name, values in taken.items()
    }


def measure_sizes(projects: dict[int, Path], torchfix: list[str] | None, rounds: int) -> list[dict[str, float]]:
    """Return for each size the time of a check, and that of TorchFix over the same files."""
    commands = {"retrofit start": [*PYTHON, "-c", "import retrofit.rules.registry, retrofit.check.formats"]}
    if torchfix:
        empty = min(projects.values()).parents[1] / "empty.py"
        empty.write_text("")
        commands["torchfix start"] = [*torchfix, str(empty)]
    for lines, script in projects.items():
        commands[f"retrofit {lines}"] = [*RETROFIT, str(script)]
        if torchfix:
            commands[f"torchfix {lines}"] = [*torchfix, str(script.parent)]
    taken = measure(commands, rounds)
    return [row(lines, taken) for lines in projects]


def row(lines: int, taken: dict[str, list[float]]) -> dict[str, float]:
    """Return the figures of one size; without start-up means less that of the same round."""
    ours, ours_start = taken[f"retrofit {lines}"], taken["retrofit start"]
    figures: dict[str, float] = {"lines": lines, "retrofit seconds": statistics.median(ours)}
    work = [whole - start for whole, start in zip(ours, ours_start)]
    figures["lines per second"] = lines / statistics.median(ours)
    figures["lines per second without start-up"] = lines / statistics.median(work)
    if f"torchfix {lines}" in taken:
        theirs, their_start = taken[f"torchfix {lines}"], taken["torchfix start"]
        their_work = [whole - start for whole, start in zip(theirs, their_start)]
        figures["torchfix seconds"] = statistics.median(theirs)
        figures["torchfix / retrofit"] = statistics.median(a / b for a, b in zip(theirs, ours))
        figures["torchfix / retrofit without start-up"] = statistics.median(a / b for a, b in zip(their_work, work))
    return figures


def compare(args: argparse.Namespace) -> None:
    """Print the CPU seconds of a check by another checkout and by this one, which take turns, script by script."""
    checkouts = [checkout(folder) for folder in (args.before, ROOT)]
    with tempfile.TemporaryDirectory() as folder:
        generated = [write_project(Path(folder, f"project {size}"), size)[0] for size in args.sizes]
        scripts = [path.resolve() for path in [*args.scripts, *generated]]
        taken: dict[tuple[Path, Path], list[float]] = {(script, kit): [] for script in scripts for kit in checkouts}
        for number in tqdm(range(args.rounds + 1), unit="rounds"):
            for script, kit in taken:
                value = cpu_seconds([*RETROFIT, str(script)], kit)
                if number:
                    taken[script, kit].append(value)
    rows = [
        {
            "script": "/".join(script.parts[-2:]),
            "before": statistics.median(taken[script, checkouts[0]]),
            "now": statistics.median(taken[script, checkouts[1]]),
            "ratio": statistics.median(new / old for old, new in zip(*(taken[script, kit] for kit in checkouts))),
        }
        for script in scripts
    ]
    for row in rows:
        print(f"{row['before']:7.2f} s {row['now']:7.2f} s  {row['ratio']:5.2f}x  {row['script']}")
    before, now = (sum(row[column] for row in rows) for column in ("before", "now"))
    print(f"{before:7.2f} s {now:7.2f} s  {now / before:5.2f}x  all")
    if args.output:
        figures = {"environment": environment(), "scripts": rows}
        args.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def checkout(folder: Path) -> Path:
    """Return the folder, in which Python must find its own copy of the kit."""
    place = [*PYTHON, "-c", "import retrofit; print(retrofit.__file__)"]
    found = subprocess.run(place, cwd=folder, capture_output=True, text=True, check=False).stdout.strip() or "none"
    if not Path(found).is_relative_to(folder.resolve()):
        raise ValueError(f"{folder} is not a checkout of retrofit: Python finds there: {found}; name its top folder")
    return folder.resolve()


def cpu_seconds(command: list[str], folder: Path) -> float:
    """Return the user and system time of a command, which other work on the machine disturbs less."""
    started = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds(command, folder)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime - started.ru_utime + ended.ru_stime - started.ru_stime


def print_report(figures: dict[str, Any]) -> None:
    print(", ".join(f"{name} {value}" for name, value in figures["environment"].items()))
    for name, value in figures["start-up"].items():
        print(f"{value['seconds']:7.3f} s  {value['over python -c pass']:6.1f}x  {name}")
    names = list(figures["sizes"][0])
    print("| " + " | ".join(names) + " |")
    print("|---" * len(names) + "|")
    for figures_of_size in figures["sizes"]:
        values = (f"{value:.0f}" if value >= 100 else f"{value:.2f}" for value in figures_of_size.values())
        print("| " + " | ".join(values) + " |")


def plot(figures: dict[str, Any], picture: Path) -> None:
    """Draw seconds by lines, on logarithmic axes, where a straight line of slope 1 is linear time."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, NullLocator

    rows = figures["sizes"]
    lines = [value["lines"] for value in rows]
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    axes.plot(lines, [value["retrofit seconds"] for value in rows], "o-", color="#1f6fb4", label="retrofit check")
    if "torchfix seconds" in rows[0]:
        axes.plot(lines, [value["torchfix seconds"] for value in rows], "s--", color="#8a8a8a", label="TorchFix, 1 job")
    first = rows[0]["retrofit seconds"] / lines[0]
    axes.plot(
        lines, [first * value for value in lines], ":", color="#1f6fb4", linewidth=1, label="proportional to the lines"
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(lines, [f"{value / 1000:.1f}".rstrip("0").rstrip(".") for value in lines])
    axes.set_yticks([value for value in TICKS if value <= axes.get_ylim()[1]])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:g}"))
    axes.set_xlabel("project size [1000 lines]")
    axes.set_ylabel("whole run, start-up included [s]")
    axes.grid(which="major", color="#dddddd", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(picture, dpi=150)
    print(f"wrote {picture}")


if __name__ == "__main__":
    sys.exit(main())
