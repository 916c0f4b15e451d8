"""MULTI_GPU.md: the commands for one converted project."""

from __future__ import annotations

import shlex

NAME = "MULTI_GPU.md"
PAGE = """\
# Training on several GPUs

| To | Run |
|---|---|
| train on every GPU of this machine | `bash train_torchrun.sh ARGUMENTS` |
| train on two of them | `CUDA_VISIBLE_DEVICES=0,1 bash train_torchrun.sh ARGUMENTS` |
| train on one GPU, as before | `python {command} ARGUMENTS` |
| try it without a GPU, in two processes | `CUDA_VISIBLE_DEVICES= NPROC_PER_NODE=2 bash train_torchrun.sh ARGUMENTS` |
| debug | "Debug DDP Training" in VS Code |
| prove that it is the same training | `retrofit verify {command} -- ARGUMENTS` |
| take the conversion back | `retrofit convert {command} --undo` |

ARGUMENTS are those of {entry}.

**Batch size.** It counts samples per process, and the learning rate follows (linear rule; `RETROFIT_LR_SCALE=sqrt` or
`none`). With `RETROFIT_BATCH=global` it counts all processes together: the same batch, the same rate, the same
training as on one GPU.

**BatchNorm** takes its statistics over all processes. `RETROFIT_BATCHNORM=local` is faster and another training.

**Evaluation** is shared out by whole batches where the script shows all that it adds up (`rd.share_batches`); its
figures are those of one process. Elsewhere every process runs all of it, in one order where
the loader shuffles. Either way all take the same decisions.

**Output.** Only the first process prints and writes files. A training loss that is read with `loss.item()` is the mean
over all processes; other figures of the training loop, and what an evaluation shows while it runs, are those of the
first process's share.
"""


def guide(entry: str) -> str:
    """Return the page for the script `entry`, a path from the project's folder."""
    return PAGE.format(entry=entry, command=shlex.quote(entry).replace("|", "\\|"))  # it stands in a table
