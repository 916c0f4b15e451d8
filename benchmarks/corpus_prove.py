"""Run `retrofit convert --prove` on real projects from outside this repository, and print a table of the verdicts.

  python benchmarks/corpus_prove.py --recipes DIR --sources DIR --venv DIR --work DIR [--only NAME ...]

The recipes, sources and virtual environment are those of corpus.py; each project is run with the arguments of its
recipe, on its tiny made-up data, in half a minute to ten. What is not a PASS is shown with the checks that failed.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

from corpus import ROOT, Bench, last_line, recipes_in
from tqdm import tqdm

LAUNCH = """\
#!/bin/sh
# The first argument is the script of the recipe; what follows are its arguments.
script=$1
shift
exec {python} -c "{start}" convert "$script" --root "{project}" --prove --force -- "$@"
"""
START = "import sys; sys.path.insert(0, '{root}'); from retrofit.cli import main; sys.exit(main())"
ALL_OUTPUT = {"TAIL": "100000"}  # of which recipes show the last lines alone
FAILED = re.compile(r"^FAIL      (.*)$", re.MULTILINE)
CONCLUSION = re.compile(r"^(PASS|FAIL|INCOMPLETE|NOT JUDGED): .*$", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", type=Path, required=True, metavar="DIR", help="one NAME.sh per project")
    parser.add_argument("--sources", type=Path, required=True, metavar="DIR", help="the projects, as owner__name")
    parser.add_argument("--venv", type=Path, required=True, metavar="DIR", help="virtual environment of the projects")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="where the runs happen")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these projects (default: all)")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one project (default: 900)")
    args = parser.parse_args()
    print("| project | verdict | time | what failed |\n|---|---|---|---|")
    for name in tqdm(args.only or recipes_in(args.recipes)):
        tqdm.write(proven(Bench(args, name)))
    return 0


def proven(bench: Bench) -> str:
    """Return the row of one project: the verdict of its proof, or the last line of what ended otherwise."""
    bench.recipe("prove", "prep")
    launch = bench.folder / "launch.sh"
    project = bench.folder / "prove" / "src"
    launch.write_text(LAUNCH.format(start=START.format(root=ROOT), python=bench.python, project=project))
    started = time.perf_counter()
    as_it_is = {
        "COMPAT_EXACT": "",
        "LOSS_LOG": "",
        "OBSERVED": "",
    }  # `verify` makes runs comparable
    result = bench.recipe("prove", "run", LAUNCH=f"sh {launch}", **ALL_OUTPUT, **as_it_is)
    seconds = time.perf_counter() - started
    found = CONCLUSION.search(result.stdout)
    verdict = found.group(1) if found else "no verdict"
    failed = "; ".join(text.strip() for text in FAILED.findall(result.stdout))
    return f"| {bench.name} | {verdict} | {seconds:.0f} s | {failed or ('' if found else last_line(result))} |"


if __name__ == "__main__":
    sys.exit(main())
