"""Check that train.py has its dependencies, and print one line instead of a traceback. Standard library only."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from retrofit.packages.installation import install_command
from scripts.launch.dependencies import MODULE_NAMES, REFERENCE, read_requirements, requirement_name

ROOT = Path(__file__).resolve().parents[2]


def check_dependencies(script: str) -> None:
    """End with status 2 and one line if a package that `script` needs is not installed for this Python."""
    try:
        names = [requirement_name(requirement) for requirement in read_requirements(ROOT, REFERENCE)]
    except (OSError, ValueError):  # a copy without pyproject.toml: the imports will fail instead
        return
    missing = [name for name in names if importlib.util.find_spec(MODULE_NAMES.get(name, name)) is None]
    if not missing:
        return
    if (ROOT / ".venv" / "bin" / "python").exists():
        remedy = f"`source {ROOT}/.venv/bin/activate` first"
    else:
        remedy = f"`bash {ROOT}/train_torchrun.sh`, which installs what is missing, or `{install_command(REFERENCE)}`"
    lacking = f"{', '.join(missing)} {'are' if len(missing) > 1 else 'is'} not installed for {sys.executable}"
    print(f"{script}: error: {lacking}; run {remedy}", file=sys.stderr)
    sys.exit(2)
