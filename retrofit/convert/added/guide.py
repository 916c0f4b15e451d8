"""MULTI_GPU.md: the commands for one converted project."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Sequence

from retrofit import __version__
from retrofit.analysis.files.runtime_names import FILE_NAME
from retrofit.analysis.files.start import Start
from retrofit.packages.installation import DISTRIBUTION
from retrofit.rules.finding import Finding

from ..listing import figures
from .script_facts import ScriptFacts

NAME = "MULTI_GPU.md"
MOST_LINES = 40
HERE = " The commands are for this folder, the one in which the script's imports are found."
OTHERS = """\
- **Other scripts** were converted with it: {scripts}. Each has launch scripts and a page of its own (`MULTI_GPU*.md`),
  and can be taken back on its own.
"""
NOT_READ = """\
- **Not read.** These imports can be of any module, or of one that was not found, so nothing was changed in what they
  import. Look there for files that every process would write, for prints and for devices that are named by number:
{places}
"""
PAGE = """\
# Training {entry} on several GPUs

| To | Run |
|---|---|
| train on every GPU of this machine | `bash train_torchrun.sh ARGUMENTS` |
| train on two of them | `CUDA_VISIBLE_DEVICES=0,1 bash train_torchrun.sh ARGUMENTS` |
| use a certain port | `bash train_torchrun.sh --master_port 12345 ARGUMENTS` |
| train on two machines | `NNODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 bash train_torchrun.sh ARGUMENTS` |
| ... on the second one | `NNODES=2 NODE_RANK=1 MASTER_ADDR=10.0.0.1 bash train_torchrun.sh ARGUMENTS` |
{more}| train on one GPU, as before | `{variable}python {command} ARGUMENTS` |
| try it without a GPU, in two processes | `CUDA_VISIBLE_DEVICES= NPROC_PER_NODE=2 bash train_torchrun.sh ARGUMENTS` |
| debug | "Debug DDP Training" in VS Code |
| prove that it is the same training | `{variable}retrofit verify {command}{verify}` |
| take the conversion back | `{undo}` |

ARGUMENTS are those of {entry}{arguments}.{here}

"""
FSDP = """\
| train a model that is too large for each GPU, sharded | `RETROFIT_STRATEGY=fsdp bash train_torchrun.sh ARGUMENTS` |
"""
BATCH = """\
- **Batch size.** {batch} counts samples per process, and the learning rate follows (linear rule;
  `RETROFIT_LR_SCALE=sqrt` or `none`). With `RETROFIT_BATCH=global` it counts all processes together: the same batch,
  the same rate, the same training as on one GPU.
"""
BATCHNORM = """\
- **BatchNorm** takes its statistics over all processes. `RETROFIT_BATCHNORM=local` is faster and another training.
"""
SHARDED = """\
- **Evaluation** is split by whole batches (`rd.share_batches`); its figures are those of one process.
"""
IN_FULL = """\
- **Evaluation** in full on every process, because {reasons}. All processes take the same decisions.
"""
OUTPUT = """\
- **Output.** Only the first process prints and writes files. A mean, a sum or a count of a training batch is that of
  all processes (`rd.reduce_loss`, `rd.reduce_total`).
"""
COPIED = """\
- **Commit** the changed files, `{runtime}`, the two scripts and this page; `.retrofit/`, for `--undo`, ignores itself.
  `{runtime}` is all that training needs; `retrofit convert --update-runtime` renews it. The command `retrofit` is that
  of the kit: `pip install 'CLONE[verify]'`, where CLONE is the path of its clone, or `git+` and the clone's URL.
"""
INSTALLED = f"""\
- **The runtime** is not part of this folder: every machine that trains needs the kit, {DISTRIBUTION} {__version__}:
  `pip install CLONE`, where CLONE is the path of its clone, or `git+` and the clone's URL. What `retrofit verify` needs
  comes with `pip install 'CLONE[verify]'`.
"""
PLACE = re.compile(r"  - `(.+?):(\d+)`: ")


def guide(
    start: Start,
    vendor: bool,
    not_read: Sequence[str] = (),
    listed: Sequence[Finding] = (),
    steps: str = "",
    facts: ScriptFacts | None = None,
    features: Collection[str] = (),
) -> str:
    """Return the page for a script that is started as `start` says; `vendor`: with the runtime file.

    `not_read` are the places where any module may be imported by name, or one that was not found: nothing is changed
    in what they import. `listed` are the figures of one rank, `steps` is the part about trainings that count steps.
    Only the paragraphs that apply to the script are there. A page that would be long has the places of a file in one
    line each.
    """
    facts = facts or ScriptFacts()
    runtime = os.path.relpath(start.first_folder / FILE_NAME, start.root)
    page = "".join(
        [
            _commands(start, facts, FSDP if "fsdp" in features else ""),
            BATCH.format(batch=f"`{facts.batch.flag}`" if facts.batch else "It"),
            *(f"  - {text}.\n" for text in facts.rate_rules),
            BATCHNORM if facts.may_have_batchnorm else "",
            SHARDED if facts.is_sharded else "",
            IN_FULL.format(reasons="; ".join(facts.full_evaluations)) if facts.full_evaluations else "",
            OUTPUT,
            figures(listed),
            steps,
            OTHERS.format(scripts=", ".join(f"`{script}`" for script in facts.others)) if facts.others else "",
            COPIED.format(runtime=runtime) if vendor else INSTALLED,
            NOT_READ.format(places="\n".join(f"  - {place}" for place in not_read)) if not_read else "",
        ]
    )
    return page if page.count("\n") <= MOST_LINES else _with_joined_places(page)


def _commands(start: Start, facts: ScriptFacts, more: str) -> str:
    """Return the head of the page: the table of commands, and the names of the script's arguments."""
    path = ":".join(start.folders)
    names = ", ".join(f"`{option.flag}`" for option in facts.options)
    arguments = ["--", *facts.verify_arguments] if facts.verify_arguments else []
    return PAGE.format(
        entry=start.words[-1],
        more=more,
        command=_in_table(start.words),
        variable=f"PYTHONPATH={_in_table([path])} " if path else "",
        verify="".join(f" {word}" for word in arguments),
        arguments=f": {names}" if names else "",
        here=HERE if start.root != start.entry.parent else "",
        undo=undo_command(os.path.relpath(start.entry, start.root)),
    )


def _with_joined_places(page: str) -> str:
    lines: list[str] = []
    path = None
    for line in page.splitlines():
        place = PLACE.match(line)
        if place and place[1] == path:
            lines[-1] += f"; `:{place[2]}`: {line[place.end() :]}"
        else:
            lines.append(line)
        path = place[1] if place else None
    return "\n".join([*lines, ""])


def undo_command(entry: str) -> str:
    """Return the command that takes the conversion of a script back, as it is written on the page."""
    entry = f"./{entry}" if entry.startswith("-") else entry  # not an option
    return f"retrofit convert {_in_table([entry])} --undo"


def _in_table(words: Sequence[str]) -> str:
    return shlex.join(words).replace("|", "\\|")
