"""The two launch scripts of a converted project: train_torchrun.sh and train_ddp.sh."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from retrofit.analysis.files.runtime_names import FILE_NAME
from retrofit.analysis.files.start import Start

# Flags of torchrun that set a variable of the scripts, unless the word is one of the project: it may be a flag there.
LAUNCH_FLAGS = ("nproc_per_node", "nnodes", "node_rank", "master_addr", "master_port")
HEADS = {
    "train_torchrun.sh": """\
# Trains with torchrun on every GPU of this machine (without a GPU: in two CPU processes).
#
#   bash train_torchrun.sh [ARGUMENT OF {entry} ...]
#   NPROC_PER_NODE=2 bash train_torchrun.sh               two processes
#   CUDA_VISIBLE_DEVICES=0,1 bash train_torchrun.sh       on two of the GPUs
#   RETROFIT_BATCH=global bash train_torchrun.sh          the batch size counts all processes together
#   NNODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 bash train_torchrun.sh     the first of two machines
#   NNODES=2 NODE_RANK=1 MASTER_ADDR=10.0.0.1 bash train_torchrun.sh     the second one
""",
    "train_ddp.sh": """\
# Trains with torch.distributed.launch, the older launcher; train_torchrun.sh is the recommended one.
#
#   bash train_ddp.sh [ARGUMENT OF {entry} ...]           with the variables of train_torchrun.sh
""",
}
LAUNCHERS = {"train_torchrun.sh": "torch.distributed.run", "train_ddp.sh": "torch.distributed.launch --use_env"}
FLAGS_NOTE = """\
#
# Flags of torchrun set the variables, too: {flags}.
"""
BODY = """\

set -euo pipefail

cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")"

fail() {{
  printf '%s: error: %s\\n' "$(basename -- "$0")" "$1" >&2
  exit 2
}}
{take_flags}
{path}PYTHON="${{PYTHON:-python}}"
if [[ -z "${{NPROC_PER_NODE:-}}" ]]; then
  NPROC_PER_NODE="$("${{PYTHON}}" -c 'import torch; print(torch.cuda.device_count() or 2)')"
fi
meeting=(--standalone) # on one machine, at a free port
if [[ "${{NNODES:-1}}" != 1 ]]; then
  [[ -n "${{MASTER_ADDR:-}}" && -n "${{NODE_RANK:-}}" ]] \\
    || fail "NNODES=${{NNODES}} needs MASTER_ADDR, the first machine's address, and NODE_RANK, this machine's number"
  meeting=("--nnodes=${{NNODES}}" "--node_rank=${{NODE_RANK}}" "--master_addr=${{MASTER_ADDR}}"
    "--master_port=${{MASTER_PORT:-29500}}")
elif [[ -n "${{MASTER_PORT:-}}" ]]; then
  meeting=(--master_addr=127.0.0.1 "--master_port=${{MASTER_PORT}}")
fi
export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-1}}"
# The launcher of torch; {runtime_name} adds how it ends at Ctrl-C.
exec "${{PYTHON}}" {start} {launcher} "${{meeting[@]}}" \\
  --nproc_per_node="${{NPROC_PER_NODE}}" {script} "$@"
"""
SEARCH_PATH = """\
export PYTHONPATH={folders}"${{PYTHONPATH:+:${{PYTHONPATH}}}}" # where the imports of the project are found
"""
TAKE_FLAGS = """
arguments=()
while (($# > 0)); do
  flag="${{1%%=*}}"
  case "${{flag//-/_}}" in
    {patterns})
      value="${{2:-}}"
      [[ "$1" != *=* ]] || value="${{1#*=}}"
      [[ -n "${{value}}" ]] || fail "${{flag}} needs a value; give one, or leave out ${{flag}}"
      printf -v "$(printf '%s' "${{flag#--}}" | tr 'a-z-' 'A-Z_')" '%s' "${{value}}"
      [[ "$1" == *=* ]] || shift
      ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
set -- ${{arguments[@]+"${{arguments[@]}}"}}
"""


def launch_scripts(start: Start, runtime: Path | None, texts: Iterable[str]) -> dict[Path, bytes]:
    """Return the two scripts by their path.

    `runtime` is the folder that the runtime file is in, None where the library is installed. `texts` are those of the
    project's modules.
    """
    texts = list(texts)
    flags = [flag for flag in LAUNCH_FLAGS if not any(_mentions(text, flag) for text in texts)]
    take_flags = TAKE_FLAGS.format(patterns=" | ".join(f"__{flag}" for flag in flags)) if flags else ""
    note = FLAGS_NOTE.format(flags=", ".join(f"--{flag}" for flag in flags)) if flags else ""
    place = os.path.relpath(runtime / FILE_NAME, start.root) if runtime else ""
    path = SEARCH_PATH.format(folders=":".join(map(_below_here, start.folders))) if start.path else ""
    words = shlex.join(start.words)
    files = {}
    for name, head in HEADS.items():
        body = BODY.format(
            take_flags=take_flags,
            path=path,
            start=shlex.quote(place) if runtime else "-m retrofit.distributed.launcher",
            launcher=LAUNCHERS[name],
            script=words,
            runtime_name=FILE_NAME if runtime else "retrofit",
        )
        entry = start.words[-1].replace("\n", " ")
        text = "#!/usr/bin/env bash\n#\n" + head.format(entry=entry) + note + body
        files[start.root / name] = os.fsencode(text)
    return files


def _below_here(folder: str) -> str:
    """Return a folder below the current one as a word of the shell."""
    return '"${PWD}"' if folder == os.curdir else f'"${{PWD}}"/{shlex.quote(folder)}'


def _mentions(text: str, flag: str) -> bool:
    return re.search(rf"\b{flag.replace('_', '[-_]')}\b", text) is not None
