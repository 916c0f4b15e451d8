"""The projects that were chosen for development, as a section of docs/corpus.md, from corpus_projects.json.

python benchmarks/corpus_projects.py            print the section
python benchmarks/corpus_projects.py --write    renew it in docs/corpus.md
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROJECTS = HERE / "corpus_projects.json"
PAGE = HERE.parent / "docs" / "corpus.md"
HEADING = "## Projects chosen for development"
KINDS = {
    1: "a loader within something else",
    2: "no loader",
    3: "streams",
    4: "entry points",
    5: "models trained through methods, in containers, of libraries",
    6: "in-batch losses, codebooks, batch statistics",
    7: "progress, tracking, files, schedules",
    8: "carried state, LBFGS, reinforcement learning, second order",
}
OUTCOMES = ("right", "wrong", "rightly refused", "wrongly refused", "error")
SECTION = """\
{heading}

{scripts} scripts of {repositories} public repositories, none of them in the table above, converted (`retrofit convert`,
which reads only) at commit {commit}. The outcome was judged by reading the script and the whole diff, and is not that
of today. The {run} scripts of the first table below were run, too, by `benchmarks/corpus.py` on tiny made-up data. The
others were only read. `now` is what the command says at commit {now_at}, without a judgement: {now}.

- `right`: what an expert would have written, or as good; figures of one rank are listed, by line (`listed`: how many).
- `wrong`: an error in the converted script, by reading: silently, or one that ends the run. Each has a note.
- `rightly refused`, `wrongly refused`: nothing written; wrongly where the note says what could have been converted.
- `error`: the check of the converted text stopped the command.
- `expert`: whether an expert could convert the script within an hour.

{counts}

What the runs showed, in the words of the table above:

{runs}
{table}"""


def section() -> str:
    """Return the section of the page: what the words mean, counts per kind, and every script."""
    data = json.loads(PROJECTS.read_text(encoding="utf-8"))
    rows = data["projects"]
    return SECTION.format(
        heading=HEADING,
        scripts=len(rows),
        repositories=len({row["repository"] for row in rows}),
        commit=data["judged_at"],
        run=sum(bool(row["run"]) for row in rows),
        now_at=data["converted_at"],
        now=now(rows),
        counts=counts(rows),
        runs=runs(rows),
        table=table(rows),
    )


def now(rows: Sequence[dict[str, Any]]) -> str:
    """Return how many scripts are converted, refused and stopped by an error today, and what became of the refused."""
    found = Counter(row["now"] for row in rows)
    was_refused = [row["now"] for row in rows if row["outcome"] == "wrongly refused"]
    whole = ", ".join(f"{number} {outcome}" for outcome, number in found.most_common())
    return f"{whole}; of the {len(was_refused)} wrongly refused {was_refused.count('converted')} are converted"


def counts(rows: Sequence[dict[str, Any]]) -> str:
    """Return a table with the number of outcomes of each kind."""
    lines = [f"| kind | scripts | {' | '.join(OUTCOMES)} |", "|---" * (len(OUTCOMES) + 2) + "|"]
    for kind, words in KINDS.items():
        found = Counter(row["outcome"] for row in rows if row["kind"] == kind)
        cells = [str(found[outcome]) for outcome in OUTCOMES]
        lines.append(f"| {kind}: {words} | {found.total()} | {' | '.join(cells)} |")
    whole = Counter(row["outcome"] for row in rows)
    lines.append(f"| all | {whole.total()} | {' | '.join(str(whole[outcome]) for outcome in OUTCOMES)} |")
    possible = [row for row in rows if row["expert_in_an_hour"]]
    number = sum(row["outcome"] == "right" for row in possible)
    lines += ["", f"Of the {len(possible)} that an expert could convert within an hour, {number} are right."]
    return "\n".join(lines)


def runs(rows: Sequence[dict[str, Any]]) -> str:
    """Return one line for each script that was run."""
    lines = ["| script | runs |", "|---|---|"]
    for row in sorted((row for row in rows if row["run"]), key=lambda row: str(row["name"])):
        lines.append(f"| {row['repository']}: {row['script']} | {row['run']} |")
    return "\n".join(lines) + "\n"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return one line for each script, ordered by kind and name."""
    columns = ("script", "kind", "subject", "outcome", "rule", "added", "listed", "expert", "now", "note")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in sorted(rows, key=lambda row: (row["kind"], row["name"])):
        source = f"{row['repository']} @ {row['commit']}: {row['script']}"
        expert = "yes" if row["expert_in_an_hour"] else "no"
        cells = (source, row["kind"], row["subject"], row["outcome"], row["rule"], row["added"], row["listed"], expert)
        lines.append(f"| {' | '.join(map(str, (*cells, row['now'], row['note'])))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="renew the section in docs/corpus.md")
    if not parser.parse_args().write:
        print(section())
        return
    before = PAGE.read_text(encoding="utf-8").partition(HEADING)[0].rstrip("\n")
    PAGE.write_text(f"{before}\n\n{section()}", encoding="utf-8")


if __name__ == "__main__":
    main()
