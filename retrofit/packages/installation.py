"""The pip command that installs the kit, or one of its extras, from where this copy of it came from."""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "torch-retrofit"


def missing_packages(packages: Iterable[str], extra: str) -> str | None:
    """Return one line that names the packages which this Python lacks and how to install them; None if none."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    verb = "are" if len(missing) > 1 else "is"
    return f"{', '.join(missing)} {verb} not installed for {sys.executable}; run `{install_command(extra)}`"


def install_command(extra: str = "") -> str:
    """Return the command, for a shell, that installs the kit for this Python with `extra`."""
    return shlex.join([sys.executable, "-m", "pip", "install", requirement(extra)])


def requirement(extra: str = "") -> str:
    """Return what pip installs the kit by: the clone or file it came from, its git URL, else its name."""
    bracket = f"[{extra}]" if extra else ""
    folder = Path(__file__).resolve().parents[2]
    project = folder / "pyproject.toml"
    if project.is_file() and f'name = "{DISTRIBUTION}"' in project.read_text(encoding="utf-8"):
        return f"{folder}{bracket}"
    return _recorded_source(bracket) or f"{DISTRIBUTION}{bracket}"


def _recorded_source(bracket: str) -> str | None:
    """Return the source that pip recorded at the installation (PEP 610), if it is one and can still be used."""
    folder = str(Path(__file__).resolve().parents[2])  # `convert` has no other one on its search path
    found = next(iter(metadata.distributions(name=DISTRIBUTION, path=[folder])), None)
    try:
        recorded = json.loads((found.read_text("direct_url.json") if found else None) or "{}")
    except ValueError:
        return None
    url = recorded.get("url", "")
    if "vcs_info" in recorded:
        info = recorded["vcs_info"]
        return f"{DISTRIBUTION}{bracket} @ {info['vcs']}+{url}@{info['commit_id']}"
    if url.startswith("file://"):
        path = Path(unquote(urlsplit(url).path))
        return f"{path}{bracket}" if path.exists() else None
    return f"{DISTRIBUTION}{bracket} @ {url}" if url else None
