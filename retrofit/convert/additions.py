"""What a conversion puts beside the user's files: the runtime, two scripts, a debug configuration, a page."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

from .guide import NAME, guide

KIT = Path(__file__).resolve().parents[1]

TORCHRUN = """\
#!/usr/bin/env bash
#
# Trains with torchrun on every GPU of this machine (without a GPU: in two CPU processes).
#
#   bash train_torchrun.sh [ARGUMENT OF {entry} ...]
#   NPROC_PER_NODE=2 bash train_torchrun.sh               two processes
#   CUDA_VISIBLE_DEVICES=0,1 bash train_torchrun.sh       on two of the GPUs
#   RETROFIT_BATCH=global bash train_torchrun.sh          the batch size counts all processes together

set -euo pipefail

cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")"
PYTHON="${{PYTHON:-python}}"
if [[ -z "${{NPROC_PER_NODE:-}}" ]]; then
  NPROC_PER_NODE="$("${{PYTHON}}" -c 'import torch; print(torch.cuda.device_count() or 2)')"
fi
export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-1}}"
exec "${{PYTHON}}" -m torch.distributed.run --standalone --nproc_per_node="${{NPROC_PER_NODE}}" {quoted} "$@"
"""

DDP = """\
#!/usr/bin/env bash
#
# Trains with torch.distributed.launch, the older launcher; train_torchrun.sh is the recommended one.
#
#   bash train_ddp.sh [ARGUMENT OF {entry} ...]

set -euo pipefail

cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")"
PYTHON="${{PYTHON:-python}}"
if [[ -z "${{NPROC_PER_NODE:-}}" ]]; then
  NPROC_PER_NODE="$("${{PYTHON}}" -c 'import torch; print(torch.cuda.device_count() or 2)')"
fi
export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-1}}"
exec "${{PYTHON}}" -m torch.distributed.launch --use_env --master_port="${{MASTER_PORT:-29500}}" \\
  --nproc_per_node="${{NPROC_PER_NODE}}" {quoted} "$@"
"""

COMMAND = '''\
"""`python -m retrofit` beside a converted script is the installed kit; this copy of it holds the runtime alone."""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    here = Path(__file__).resolve().parents[1]
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != here]
    for name in [name for name in sys.modules if name.partition(".")[0] == "retrofit"]:
        del sys.modules[name]
    try:
        main = importlib.import_module("retrofit.cli").main
    except ImportError:
        sys.exit("retrofit is not installed in this Python, only its runtime lies here; install the kit with pip")
    sys.exit(main())
'''


def additions(root: Path, entry: Path, vendor: bool) -> dict[Path, bytes]:
    """Return the files that are put into `root`, by their path; what is there already and says the same is left out."""
    script = os.path.relpath(entry, root)
    if script.startswith("-"):
        script = f"./{script}"  # not an option
    named = {"entry": script.replace("\n", " "), "quoted": shlex.quote(script)}
    files = {
        root / "train_torchrun.sh": os.fsencode(TORCHRUN.format(**named)),
        root / "train_ddp.sh": os.fsencode(DDP.format(**named)),
        root / NAME: os.fsencode(guide(script)),
    }
    launch = root / ".vscode" / "launch.json"
    merged = merge_launch(launch.read_text(encoding="utf-8") if launch.exists() else "", script)
    if merged is not None:
        files[launch] = merged.encode()
    if vendor:
        files.update(runtime_files(entry.parent))
    return {path: data for path, data in files.items() if not (path.exists() and path.read_bytes() == data)}


def runtime_files(folder: Path) -> dict[Path, bytes]:
    """Return the copy of the runtime that goes beside a script: what it needs to train, no more."""
    runtime = KIT / "distributed"
    target = folder / "retrofit"
    files = {target / "distributed" / path.name: path.read_bytes() for path in sorted(runtime.glob("*.py"))}
    files[target / "__init__.py"] = (KIT / "__init__.py").read_bytes()
    files[target / "__main__.py"] = COMMAND.encode()
    return files


def merge_launch(text: str, script: str) -> str | None:
    """Return launch.json with a debug configuration for the distributed script; None where it cannot be merged.

    A file with comments is left alone: writing it again would lose them.
    """
    try:
        content: dict[str, Any] = json.loads(text) if text.strip() else {"version": "0.2.0", "configurations": []}
        configurations: list[Any] = content["configurations"]
    except (ValueError, KeyError, TypeError):
        return None
    name = "Debug DDP Training"
    if any(isinstance(entry, dict) and entry.get("name") == name for entry in configurations):
        return text
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "12355"}
    configurations.append(
        {
            "name": name,
            "type": "debugpy",
            "request": "launch",
            "program": "${workspaceFolder}/" + script,
            "args": [],
            "env": {**place, "RETROFIT_DISTRIBUTED": "1"},
            "cwd": "${workspaceFolder}",
            "console": "integratedTerminal",
            "justMyCode": False,
        }
    )
    return json.dumps(content, indent=4) + "\n"
