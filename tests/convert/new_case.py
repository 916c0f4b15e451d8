"""Make a golden case of a project: copy it, write its entry in feature_cases.py and its expected diff.

  python tests/convert/new_case.py NAME FOLDER [OPTIONS, see -h] -- ARGUMENTS

ARGUMENTS are those of a run that takes seconds on one CPU core. The project is converted and the diff is shown; read
it, then run what the command prints, which trains the project before and after, in one process and in several.
A project that is refused is an error, and nothing is kept of it, unless --refused says that this is right.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CASES = HERE / "feature_cases.py"
TEST = "tests/convert/test_converted_projects.py"
LONGEST_NOTE = 100  # one line of feature_cases.py
SKIPPED = shutil.ignore_patterns("__pycache__", ".git", "*.pt", "*.pth", "runs", ".retrofit")


def main() -> int:
    args = get_arguments()
    target = HERE / "projects" / args.name
    if target.exists():
        sys.exit(f"new_case: error: {target} exists; choose another name")
    if not (args.folder / args.entry).is_file():
        sys.exit(f"new_case: error: no script {args.entry} in {args.folder}; name it with --entry")
    cases = CASES.read_text(encoding="utf-8")
    golden = HERE / "golden" / f"{args.name}.diff"
    shutil.copytree(args.folder, target, ignore=SKIPPED)
    CASES.write_text(with_case(cases, args), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", str(CASES)], check=True)
    command = [sys.executable, "-m", "pytest", "-q", TEST, "-k", f"expected_one and {args.name}"]
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ, "UPDATE_GOLDEN": "1"}, check=False)
    if ended.returncode:
        CASES.write_text(cases, encoding="utf-8")
        shutil.rmtree(target)
        golden.unlink(missing_ok=True)
        print("new_case: error: no case was made; the reason is above", file=sys.stderr)
        return ended.returncode
    print(golden.read_text(encoding="utf-8"))
    print(f"read {golden.relative_to(ROOT)}, then run: python -m pytest {TEST} -m '' -k {args.name}")
    return 0


def with_case(text: str, args: argparse.Namespace) -> str:
    """Return the list of cases with one more at its end."""
    fields = {"name": args.name, "arguments": args.arguments, "entry": args.entry, "checkpoint": args.checkpoint,
              "refused": args.refused}  # fmt: skip
    fields = {name: value for name, value in fields.items() if value not in ("", "train.py")} | {"note": args.note}
    # JSON writes texts, and lists of texts, as this repository writes them: in double quotes.
    lines = "".join(f"        {name}={json.dumps(value, ensure_ascii=False)},\n" for name, value in fields.items())
    return f"{text.rstrip().removesuffix(']')}    Case(\n{lines}    ),\n]\n"


def get_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", metavar="NAME", help="of the case: what is special about the project, as amp_clip_ema")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="the project, before its conversion")
    parser.add_argument("--entry", default="train.py", help="the script, relative to FOLDER (default: %(default)s)")
    parser.add_argument(
        "--checkpoint", default="", metavar="GLOB", help="the checkpoint that it writes (default: none)"
    )
    parser.add_argument("--refused", default="", metavar="WHY", help="why it cannot be converted (default: it can)")
    parser.add_argument("--note", default="", metavar="TEXT", help="what the case is about, in one line")
    own, separator, arguments = split(sys.argv[1:])
    args = parser.parse_args(own)
    if len(args.note) > LONGEST_NOTE:
        parser.error(f"--note has {len(args.note)} characters; write it in {LONGEST_NOTE}")
    args.arguments = arguments if separator else []
    return args


def split(argv: list[str]) -> tuple[list[str], bool, list[str]]:
    """Return what is before `--`, whether there is one, and what is after it."""
    if "--" not in argv:
        return argv, False, []
    place = argv.index("--")
    return argv[:place], True, argv[place + 1 :]


if __name__ == "__main__":
    sys.exit(main())
