"""MULTI_GPU.md: the commands for one converted project."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from retrofit import __version__
from retrofit.analysis.files.runtime_names import FILE_NAME
from retrofit.analysis.files.start import Start
from retrofit.installation import DISTRIBUTION
from retrofit.rules.finding import Finding

from ..listing import figures

NAME = "MULTI_GPU.md"
HERE = " The commands are for this folder, the one in which the script's imports are found."
NOT_READ = """
**Not read.** These imports can be of any module, or of one that was not found, so nothing was changed in what they
import. Look there for files that every process would write, for prints and for devices that are named by number:

{places}"""
PAGE = """\
# Training on several GPUs

| To | Run |
|---|---|
| train on every GPU of this machine | `bash train_torchrun.sh ARGUMENTS` |
| train on two of them | `CUDA_VISIBLE_DEVICES=0,1 bash train_torchrun.sh ARGUMENTS` |
| use a certain port | `bash train_torchrun.sh --master_port 12345 ARGUMENTS` |
| train on two machines | `NNODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 bash train_torchrun.sh ARGUMENTS` |
| ... on the second one | `NNODES=2 NODE_RANK=1 MASTER_ADDR=10.0.0.1 bash train_torchrun.sh ARGUMENTS` |
| train on one GPU, as before | `{variable}python {command} ARGUMENTS` |
| try it without a GPU, in two processes | `CUDA_VISIBLE_DEVICES= NPROC_PER_NODE=2 bash train_torchrun.sh ARGUMENTS` |
| debug | "Debug DDP Training" in VS Code |
| prove that it is the same training | `{variable}retrofit verify {command} -- ARGUMENTS` |
| take the conversion back | `{undo}` |

ARGUMENTS are those of {entry}.{here}

**Batch size.** It counts samples per process, and the learning rate follows (linear rule; `RETROFIT_LR_SCALE=sqrt` or
`none`). With `RETROFIT_BATCH=global` it counts all processes together: the same batch, the same rate, the same
training as on one GPU. The linear rule was found for SGD; for Adam and its relatives the square root is usual. Where
the loss is a sum over the batch, its gradient grows with the batch and the rate stays as it is.

**BatchNorm** takes its statistics over all processes. `RETROFIT_BATCHNORM=local` is faster and another training.

**Evaluation** is split across the processes by whole batches where the script shows all that it adds up
(`rd.share_batches`); its figures are those of one process. Elsewhere every process runs all of it, in one order where
the loader shuffles. Either way all take the same decisions.

**Output.** Only the first process prints and writes files. A mean, a sum or a count of a training batch is brought
together over all processes where it is read (`rd.reduce_loss`, `rd.reduce_total`).

{figures}
{steps}
{runtime}
"""
COPIED = """\
**Commit** the changed files, `{runtime}`, the two scripts and this page; `.retrofit/`, for `--undo`, ignores itself.
`{runtime}` is all that training needs. The command `retrofit` is that of the kit: `pip install 'CLONE[verify]'`, where
CLONE is the path of its clone, or `git+` and the clone's URL; `retrofit convert --update-runtime` renews the file."""
INSTALLED = f"""\
**The runtime** is not part of this folder: every machine that trains needs the kit, {DISTRIBUTION} {__version__}:
`pip install CLONE`, where CLONE is the path of its clone, or `git+` and the clone's URL. `pip install 'CLONE[verify]'`
brings what `retrofit verify` needs, too."""


def guide(
    start: Start, vendor: bool, not_read: Sequence[str] = (), listed: Sequence[Finding] = (), steps: str = ""
) -> str:
    """Return the page for a script that is started as `start` says; `vendor`: with the runtime file.

    `not_read` are the places where any module may be imported by name, or one that was not found: nothing is changed
    in what they import. `listed` are the figures of one rank, `steps` is the part about trainings that count steps.
    """
    path = ":".join(start.folders)
    runtime = os.path.relpath(start.first_folder / FILE_NAME, start.root)
    page = PAGE.format(
        entry=start.words[-1],
        command=_in_table(start.words),
        variable=f"PYTHONPATH={_in_table([path])} " if path else "",
        here=HERE if start.root != start.entry.parent else "",
        undo=undo_command(os.path.relpath(start.entry, start.root)),
        figures=figures(listed),
        steps=steps,
        runtime=COPIED.format(runtime=runtime) if vendor else INSTALLED,
    )
    return page + (NOT_READ.format(places="".join(f"- {place}\n" for place in not_read)) if not_read else "")


def undo_command(entry: str) -> str:
    """Return the command that takes the conversion of a script back, as it is written on the page."""
    entry = f"./{entry}" if entry.startswith("-") else entry  # not an option
    return f"retrofit convert {_in_table([entry])} --undo"


def _in_table(words: Sequence[str]) -> str:
    return shlex.join(words).replace("|", "\\|")
