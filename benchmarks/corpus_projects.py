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
SETS = {
    "development": "Chosen during development; their defects were looked for and corrected, so they flatter.",
    "unseen": "Not looked at before they were judged once; defects found in them have been corrected since.",
    "second unseen": "As the set before, chosen and judged later, when most of its silent defects had been corrected.",
    "third unseen": "As the set before, chosen and judged after that.",
    "fourth unseen": "Chosen by subject; two that the kit does not serve (Lightning, distributed) were replaced.",
    "fifth unseen": "Chosen by subject; the choice was written down before any was converted.",
    "sixth unseen": "Chosen by subject; ten of the twelve were also run, in one process and in two.",
    "seventh unseen": "Chosen by subject; seven of the twelve were also run, in one process and in two.",
    "eighth unseen": "Seven popular repositories, seven drawn at random; six of them were also run.",
    "ninth unseen": "Chosen by subject and drawn at random within it; seven of the fourteen were also run.",
    "tenth unseen": "Chosen by subject; thirteen of the fourteen were also run, most in changed copies.",
    "eleventh unseen": "Chosen by subject, popular projects; ten of the fourteen were also run, in changed copies.",
}
SECTION = """\
{heading}

{scripts} scripts of {repositories} public repositories, none of them in the table above, converted (`retrofit convert`,
which reads only) at commit {commit}.
The outcome was judged by reading the script and the whole diff. The {run} scripts of the first table below were run,
too, by `benchmarks/corpus.py` or by hand, on tiny made-up data. The others were only read. `now` is what the command
says at commit {now_at}:
{now}. `read again` is a second
judgement, by reading, at that commit, of {later} scripts that had not been right; {again} of them were read once more,
and converted, up to commit {again_at}.

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
        commit=by_set(data["judged_at"]),
        run=sum(bool(row["run"]) for row in rows),
        later=sum(bool(row["later"]) for row in rows),
        again=data["read_again"]["scripts"],
        again_at=data["read_again"]["commit"],
        now_at=by_set(data["converted_at"]),
        now=", ".join(f"{number} {words}" for words, number in Counter(row["now"] for row in rows).most_common()),
        counts="\n\n".join(counts(name, [row for row in rows if row["set"] == name]) for name in SETS),
        runs=runs(rows),
        table=table(rows),
    )


def by_set(commits: dict[str, str]) -> str:
    """Return the commit of each set: "a3e4f87 (development, unseen), a7c1cc0 (second unseen)"."""
    names = {commit: [name for name in SETS if commits[name] == commit] for commit in commits.values()}
    return ", ".join(f"{commit} ({', '.join(sets)})" for commit, sets in names.items())


def counts(name: str, rows: Sequence[dict[str, Any]]) -> str:
    """Return what a set of scripts is, and a table with the number of its outcomes by kind."""
    lines = [f"**{name.capitalize()}**: {len(rows)} scripts. {SETS[name]}", ""]
    lines += [f"| kind | scripts | {' | '.join(OUTCOMES)} |", "|---" * (len(OUTCOMES) + 2) + "|"]
    for kind, words in KINDS.items():
        lines.append(outcomes(f"{kind}: {words}", [row["outcome"] for row in rows if row["kind"] == kind]))
    lines.append(outcomes("all", [row["outcome"] for row in rows]))
    lines.append(outcomes("all, where read again by that", [row["later"] or row["outcome"] for row in rows]))
    possible = [row for row in rows if row["expert_in_an_hour"]]
    first = sum(row["outcome"] == "right" for row in possible)
    later = sum((row["later"] or row["outcome"]) == "right" for row in possible)
    lines += ["", f"Of the {len(possible)} that an expert could convert in an hour, {first} were right, {later} are."]
    return "\n".join(lines)


def outcomes(title: str, found: Sequence[str]) -> str:
    """Return a line of a table with the number of each outcome."""
    return f"| {title} | {len(found)} | {' | '.join(str(Counter(found)[outcome]) for outcome in OUTCOMES)} |"


def runs(rows: Sequence[dict[str, Any]]) -> str:
    """Return one line for each script that was run."""
    lines = ["| script | runs |", "|---|---|"]
    for row in sorted((row for row in rows if row["run"]), key=lambda row: str(row["name"])):
        lines.append(f"| {row['repository']}: {row['script']} | {row['run']} |")
    return "\n".join(lines) + "\n"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return one line for each script, ordered by kind and name."""
    columns = ("script", "set", "kind", "subject", "outcome", "rule", "added", "listed", "expert", "note")
    columns += ("now", "read again")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in sorted(rows, key=lambda row: (row["set"], row["kind"], row["name"])):
        source = f"{row['repository']} @ {row['commit']}: {row['script']}"
        expert = "yes" if row["expert_in_an_hour"] else "no"
        cells = [source, *(row[name] for name in columns[1:-4]), expert, row["note"], row["now"]]
        cells.append(": ".join(filter(None, (row["later"], row["later_note"]))))
        lines.append(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |")
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
