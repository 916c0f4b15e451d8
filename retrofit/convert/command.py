"""`retrofit convert`: shows what it would change, and changes it with --write."""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from retrofit.analysis.files.runtime_names import FILE_NAME
from retrofit.packages.installation import DISTRIBUTION

if TYPE_CHECKING:
    from retrofit.analysis.files.start import Start

    from .plan import Conversion
    from .stages import Planned

    Prove = Callable[[argparse.Namespace, Start, Conversion, dict[Path, bytes]], int]

EPILOG = """\
examples:
  retrofit convert train.py             the changes as a diff, nothing is written
  retrofit convert train.py --prove -- --epochs 2     run them in a copy, and write them if the training is the same
  retrofit convert train.py --write     write them, with the runtime and two launch scripts
  retrofit convert train.py --undo      take the last conversion back
  retrofit convert train.py --update-runtime     renew multigpu.py after the kit was updated
  retrofit convert train.py --with fsdp --update-runtime     and let RETROFIT_STRATEGY=fsdp shard the model
  retrofit convert stage1.py stage2.py --write   scripts that share modules, all of them or none
  retrofit convert train.ipynb --write  the code cells of a notebook, as train.py
  retrofit convert -m tools.train       a script that is started as `python -m tools.train`, from this folder

exit status: 0 converted (or nothing to do); with --prove: proven and written; 1 cannot be converted correctly, or a
check failed; 2 wrong usage, or nothing could be judged; 3 incomplete: nothing failed, but samples, losses, gradients or
weights could not be compared, and nothing was written
"""


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to `commands` (of argparse's add_subparsers) and return its parser."""
    parser = commands.add_parser(
        "convert",
        usage="%(prog)s [options] SCRIPT ...|-m MODULE [-- ARGUMENTS OF SCRIPT]",
        help="turn a single-GPU training script into one for many GPUs",
        description="Change SCRIPT and the modules that it imports so that it trains on many GPUs. The code is read; "
        "only --prove runs it, in copies of its folder.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "paths",
        metavar="SCRIPT",
        nargs="*",
        help="the training script, or its folder (default: this folder); several are converted all or none",
    )
    add("-m", "--module", metavar="MODULE", help="the script as in `python -m MODULE`, in this folder or in --root")
    add(
        "--root",
        metavar="DIR",
        help="the folder that the script is started from; the launch scripts are written there (default: the innermost "
        "one that holds the script and all that it imports, up to the top of its repository)",
    )
    act = parser.add_mutually_exclusive_group().add_argument
    act("--write", action="store_true", help="write the changes (default: show them)")
    act(
        "--prove",
        action="store_true",
        help="run the script with ARGUMENTS, before and after the changes, in one and in several processes, and write "
        "the changes if all compare as the same training; needs the extra [verify]",
    )
    act("--undo", action="store_true", help="restore what the last --write changed")
    act("--update-runtime", action="store_true", help=f"write the {FILE_NAME} of this kit in the place of an older one")
    add(
        "--force",
        action="store_true",
        help="with --write or --prove: also into a git work tree with uncommitted changes; with --update-runtime: also "
        "over a runtime file that was changed by hand",
    )
    add(
        "--no-vendor",
        action="store_true",
        help=f"import the runtime from the installed kit, which every machine that trains then needs (the distribution "
        f"{DISTRIBUTION}); default: write the runtime as one file, {FILE_NAME}, next to the script",
    )
    add(
        "--with",
        dest="features",
        action="append",
        choices=["fsdp"],
        default=[],
        help=f"add to {FILE_NAME} what shards a model over the GPUs, for RETROFIT_STRATEGY=fsdp (the installed kit has "
        "it)",
    )
    return parser


def run(args: argparse.Namespace, prove: Prove | None = None) -> int:
    """Carry out the command and return its exit status.

    With --prove, `prove` decides by runs whether what has been planned may be written: it returns 0 then.
    """
    from retrofit.analysis.garbage import no_garbage_search
    from retrofit.training import SourceError

    from .self_check import ConversionError
    from .stages import new_files, say, write_together
    from .writing.write import WriteError

    try:
        scripts = [argparse.Namespace(**vars(args), path=path) for path in args.paths or [os.curdir]]
        if args.undo or args.update_runtime:
            for script in reversed(scripts):
                _undo(script) if args.undo else _update(script)
            return 0
        if args.prove and len(scripts) > 1:
            raise ValueError(
                "--prove runs one script; convert several with --write, and run `retrofit verify` for each"
            )
        with no_garbage_search():
            planned = _planned(args, scripts)
        if isinstance(planned, int):
            return planned
        status = prove(scripts[0], *planned[0][1:], new_files(*planned[0])) if args.prove and prove else 0
        if status == 0:
            write_together(planned)
        return status
    except (SourceError, WriteError, ValueError, OSError) as error:
        lines = str(error).split("\n") if isinstance(error, ConversionError) else [str(error)]
        say(f"retrofit convert: error: {lines[0]}", *lines[1:])
        return 2
    except KeyboardInterrupt:
        say("retrofit convert: interrupted; no file is half-written")
        return 130


def _planned(args: argparse.Namespace, scripts: list[argparse.Namespace]) -> list[Planned] | int:
    """Plan and show the conversions. Return those that are to be written, or the exit status if none is."""
    from retrofit.analysis.deep_stack import with_deep_stack
    from retrofit.analysis.files.source import printable

    from .plan import is_converted
    from .stages import plan_together, recover_first, refused, require_clean, say, show
    from .writing.write import real_places

    for script in scripts:
        recover_first(script)
    plans = []
    for script, start, conversion in with_deep_stack(lambda: plan_together(scripts)):
        if is_converted(conversion.project):
            more = "; --update-runtime adds to the runtime" if args.features and not args.no_vendor else ""
            print(f"{printable(start.script)} uses the runtime already; nothing to do{more}")
        elif refused(start, conversion):
            return 1
        else:
            plans.append((script, start, conversion))
    for _, start, conversion in plans:
        real_places(start.root, [file.path for file in conversion.files])
        with_deep_stack(partial(show, conversion))
    if plans and not (args.write or args.prove):
        say("nothing was written; --write writes it, --prove if it is proven by runs")
    if not plans or not (args.write or args.prove):
        return 0
    require_clean(args, [start.root for _, start, _ in plans])
    return plans


def _undo(args: argparse.Namespace) -> None:
    from retrofit.analysis.files.source import printable

    from .added.files import again
    from .stages import places
    from .writing.undo import root_of, undo

    folders, script = places(args)
    root = root_of(script, folders) if script else folders[0]
    undone = undo(root, script, again)
    for path in undone.restored:
        print(f"restored {printable(str(path.relative_to(root)))}")
    if undone.kept:
        needed_by = printable(", ".join(undone.needed_by))
        print(f"kept {len(undone.kept)} files that the conversion of {needed_by} needs")


def _update(args: argparse.Namespace) -> None:
    from retrofit.analysis.files.source import printable

    from .added.update_runtime import runtime_places, update
    from .stages import places

    for path in runtime_places(*places(args)):
        print(printable(update(path, args.force, args.features)))
