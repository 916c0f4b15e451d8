"""`retrofit verify`: its arguments, its runs, its checks and its output."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrofit.packages.installation import missing_packages

from .verdict import EXIT_STATUS, INTERNAL_ERROR, exit_status, printable

if TYPE_CHECKING:
    from .runs.plan import Plan
    from .verdict import Report

    Repairer = Callable[[Plan, Report, argparse.Namespace], Any]

PACKAGES = ("torch", "matplotlib", "psutil", "rich", "tqdm")  # of the extra [verify]
EPILOG = """\
examples:
  retrofit verify train.py -- --epochs 2 --batchsize 8
  retrofit verify train.py --original old/train.py --converted-args="--sync_bn" -n 4 -- --epochs 2
  retrofit verify -m tools.train -- --epochs 2
  retrofit verify train.py --batch-flag batch_size -- --batch_size 64 --epochs 2
  retrofit verify train.py --fix -- --epochs 2
  retrofit verify train.py --accept batchnorm --json -- --epochs 2 > verify.json

exit status: 0 the same training: samples, losses, gradients and weights were compared; 1 a check failed; 2 wrong usage
or nothing could be judged; 3 incomplete: nothing failed, but one of these four could not be compared;
4 an error of verify itself, which says nothing about the script
"""


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to `commands` (of argparse's add_subparsers), and return its parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "verify",
        usage="%(prog)s [options] SCRIPT|-m MODULE [-- ARGUMENTS OF SCRIPT]",
        help="run a script in one and in several processes and prove that both are the same training",
        description="Run SCRIPT in one process and in several, compare what both did, sample by sample and step by "
        "step, and name the cause of the first difference. Runs in copies of the current folder: your files stay as "
        "they are.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "script", metavar="SCRIPT", nargs="?", help="the retrofitted training script; let it train two epochs"
    )
    parser.add_argument("-m", "--module", metavar="MODULE", help="in place of SCRIPT, as in `python -m MODULE`")
    runs = parser.add_argument_group("runs")
    runs.add_argument(
        "--original", metavar="PATH", help="the script before the retrofit, to compare bit for bit (default: none)"
    )
    runs.add_argument(
        "--converted-args",
        type=shlex.split,
        default=[],
        metavar="ARGS",
        help="further arguments that --original does not know (default: none)",
    )
    add_run_options(runs)
    verdict = parser.add_argument_group("verdict and output")
    add_judge_options(verdict)
    verdict.add_argument("--json", action="store_true", help="print JSON instead of the table (default: off)")
    verdict.add_argument(
        "--html",
        default="verify.html",
        metavar="FILE",
        help="the page with the curves; '' = none (default: verify.html)",
    )
    return parser


def add_run_options(group: Any) -> None:
    """Add the options of the runs that `convert --prove` has, too."""
    add = group.add_argument
    add("-n", "--nproc", type=int, default=0, metavar="N", help="processes (default: the GPUs, 2 without)")
    add(
        "--steps",
        type=int,
        default=20,
        help="batches with a step per run, half of them per epoch; 0 = all (default: 20)",
    )
    add(
        "--batch-flag",
        metavar="NAME",
        help="the script's flag for the batch per process (batch_size), divided by N so that the global batch stays "
        "(default: RETROFIT_BATCH=global does it)",
    )
    add(
        "--resume-args",
        type=shlex.split,
        metavar="ARGS",
        help="arguments that continue from {checkpoint}, or its {folder} (default: found in the script's --help)",
    )
    add(
        "--precision",
        choices=("float64", "as-is"),
        default="float64",
        help="float64 finds logic errors; as-is compares in the script's own fp32, bf16 or AMP and under "
        "torch.compile, within what perturbed runs of one process differ (default: %(default)s)",
    )
    add("--device", choices=("auto", "cpu"), default="auto", help="cpu hides the GPUs (default: %(default)s)")
    add("--time-limit", type=float, default=600.0, metavar="S", help="seconds for each run (default: 600)")
    add("--hang-after", type=float, default=20.0, metavar="S", help="seconds without any progress (default: 20)")


def add_judge_options(group: Any) -> None:
    """Add the options of the verdict that `convert --prove` has, too."""
    add = group.add_argument
    add("--tolerance", type=float, help="largest relative difference of 1 and N (default: by precision, 1e-8)")
    add("--accept", action="append", default=[], metavar="CHECK", help="show this check's FAIL as ACCEPTED")
    add("--keep", metavar="DIR", help="keep the runs' copies, logs and traces there (default: deleted)")


def run(args: argparse.Namespace, repair: Repairer | None = None, show: Callable[[Any], None] | None = None) -> int:
    """Carry out the command and return its exit status.

    `repair` tries to repair what has failed, and `show` prints what came of it (retrofit/prove/repair, for --fix).
    """
    missing = missing_packages(PACKAGES, "verify")
    if missing:
        print(f"retrofit verify: error: {printable(missing)}", file=sys.stderr)
        return 2
    plan = None
    try:
        plan = _plan(args)
        report = examine(plan, args)
        if repair is None or args.json:
            show_report(report if repair is None else replace(report, repair=repair(plan, report, args)), args)
        else:
            show_report(report, args)
            found = repair(plan, report, args)
            if found is not None and show is not None:
                show(found)
    except ValueError as error:
        print(f"retrofit verify: error: {printable(error)}", file=sys.stderr)
        return 2
    except Exception:
        traceback.print_exc()
        text = "this is an error of retrofit verify, not of the script; report it with the traceback above"
        print(f"retrofit verify: error: {text}", file=sys.stderr)
        return EXIT_STATUS[INTERNAL_ERROR]
    finally:
        if plan is not None and not args.keep:
            shutil.rmtree(plan.folder, ignore_errors=True)
    return exit_status(report.verdicts)


def judge(plan: Plan, args: argparse.Namespace) -> Report:
    """Make the runs of a plan, print what the checks find in them, and return it."""
    report = examine(plan, args)
    show_report(report, args)
    return report


def examine(plan: Plan, args: argparse.Namespace) -> Report:
    """Make the runs of a plan, and return what the checks find in them."""
    from retrofit.verify.processes.progress import Progress
    from retrofit.verify.report.build import build_report

    from .checks import CheckOptions, run_checks
    from .runs.sequence import run_all
    from .source.coupled_losses import coupled_losses
    from .source.distribution import is_converted, uses_runtime
    from .source.listed_figures import listed_figures

    progress = Progress()
    runs = run_all(plan, progress)
    coupled = cache(lambda: coupled_losses(plan.judged_script))
    project = plan.project_of("one")
    options = CheckOptions(
        args.tolerance,
        frozenset(args.accept),
        runs.reasons,
        coupled,
        precision=plan.precision,
        uses_runtime=uses_runtime(project),
        listed_figures=listed_figures(project),
        is_converted=is_converted(plan.judged_script, project),
    )
    return build_report(plan, runs, run_checks(runs.by_name, options), options, progress.seconds())


def show_report(report: Report, args: argparse.Namespace) -> None:
    """Print a report, and write its page."""
    from retrofit.rules.catalog import CATALOG
    from retrofit.verify.report.html_page import write_html
    from retrofit.verify.report.json_report import report_as_json
    from retrofit.verify.report.terminal import print_report

    if args.html:
        write_html(report, Path(args.html), CATALOG)
    if args.json:
        print(report_as_json(report, CATALOG))
    else:
        print_report(report, CATALOG)
        if args.html:
            print(f"curves and evidence: {printable(args.html)}")


def _plan(args: argparse.Namespace) -> Plan:
    """Return the plan of the runs. Raises ValueError for what cannot be run."""
    project = Path.cwd()
    original = _script(args.original, project) if args.original else None
    script = _script(_given(args, project), project)
    more = {"original": original, "converted_arguments": args.converted_args, "module": args.module or ""}
    return make_plan(args, project, script, **more)


def make_plan(args: argparse.Namespace, project: Path, script: Path, **more: Any) -> Plan:
    """Return the plan of the runs that the options of `add_run_options` and `add_judge_options` ask for.

    `more` are further fields of the plan. Raises ValueError for what cannot be run. The caller removes the folder.
    """
    from retrofit.verify.processes.gpus import count_gpus

    from .checks import CHECKS
    from .runs.launches import divide_flag
    from .runs.plan import Plan

    gpus = 0 if args.device == "cpu" else count_gpus()
    nproc = args.nproc or (gpus if gpus > 1 else 2)
    if nproc < 2:
        raise ValueError(f"-n must be at least 2, got {nproc}; one process is always run as well")
    unknown = set(args.accept) - set(CHECKS)
    if unknown:
        raise ValueError(f"--accept {', '.join(sorted(unknown))}: no such check; there are {', '.join(sorted(CHECKS))}")
    for name in ("steps", "time_limit", "hang_after", "tolerance"):
        value = getattr(args, name)
        if value is not None and not 0 <= value < math.inf:
            raise ValueError(f"--{name.replace('_', '-')} must be a number of at least 0, got {value}")
    if args.batch_flag:
        divide_flag(args.arguments, args.batch_flag, nproc)
    return Plan(
        script=script,
        arguments=args.arguments,
        folder=_folder(args.keep),
        nproc=nproc,
        steps=args.steps,
        batch_flag=args.batch_flag,
        precision=args.precision,
        resume_arguments=args.resume_args,
        use_gpus=nproc <= gpus,
        time_limit_s=args.time_limit,
        idle_s=args.hang_after,
        project=project,
        **more,
    )


def _given(args: argparse.Namespace, project: Path) -> str:
    """Return the path of the script, which is given as such or as a module."""
    if bool(args.script) == bool(args.module):
        raise ValueError("give the script, or with -m the module that is started")
    if not args.module:
        return str(args.script)
    folders = [str(project), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    place = args.module.replace(".", os.sep)
    for folder in folders:
        for name in (f"{place}.py", os.path.join(place, "__main__.py")):
            if (project / folder / name).is_file():
                return os.path.join(folder, name)
    raise ValueError(f"no module {args.module} in {project} or PYTHONPATH; change to the folder that it starts in")


def _script(path: str, project: Path) -> Path:
    script = (project / path).absolute()
    if not script.is_file():
        raise ValueError(f"no script at {path}; give a path from the current folder, {project}")
    if project not in script.parents:
        raise ValueError(f"{path} is outside the current folder {project}; change to the folder that holds the project")
    return script


def _folder(keep: str | None) -> Path:
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="retrofit-verify-"))
    folder = Path(keep).absolute()
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"--keep {keep} is not empty; name a new folder, nothing in it is overwritten")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
