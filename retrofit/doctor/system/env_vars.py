"""Checks of variables left in the environment: those of a launcher, and debug switches that slow training down."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from retrofit.doctor.finding import FAIL, OK, SKIP, WARN, Finding
from retrofit.doctor.gpu.torch_facts import TorchFacts

ON = ("1",)  # CUDA and NCCL read a number
TRUE = (*ON, "y", "yes", "true", "on", "t")
# Variable, harmful values (in lower case), their effect.
SWITCHES = (
    ("CUDA_LAUNCH_BLOCKING", ON, "the CPU waits for every kernel"),
    ("NCCL_P2P_DISABLE", ON, "GPUs talk through the machine's memory"),
    ("NCCL_SHM_DISABLE", ON, "processes of one machine talk through the network"),
    ("NCCL_IB_DISABLE", ON, "machines talk over TCP, not InfiniBand or RoCE"),
    ("NCCL_DEBUG", ("info", "trace", "abort"), "every rank prints pages"),
    ("TORCH_DISTRIBUTED_DEBUG", ("detail",), "every collective is checked twice"),
    ("TORCH_NCCL_BLOCKING_WAIT", TRUE, "the CPU waits for every collective"),
    ("NCCL_BLOCKING_WAIT", TRUE, "the CPU waits for every collective"),
)
NCCL_FILES = (Path("/etc/nccl.conf"), Path("~/.nccl.conf"))


def check_launcher(facts: TorchFacts, environ: Mapping[str, str]) -> Finding:
    """Check whether a launcher's variables are left over in this shell."""
    name = "launcher variables"
    if facts.place_error:
        return Finding(name, FAIL, facts.place_error, "unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE")
    if not facts.torch:
        return Finding(name, SKIP, "not read: torch cannot be imported")
    if facts.launcher == "env" and "TORCHELASTIC_RUN_ID" not in environ:
        value = f"RANK={facts.rank} of WORLD_SIZE={facts.world_size} is set in this shell, by no torchrun"
        remedy = "unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT: a script started here waits for the others"
        return Finding(name, WARN, value, remedy)
    if facts.launcher != "none":
        return Finding(name, OK, f"rank {facts.rank} of {facts.world_size}, started by a launcher")
    return Finding(name, OK, "none set")


def check_switches(environ: Mapping[str, str], files: tuple[Path, ...] = NCCL_FILES) -> Finding:
    """Check whether switches that were meant for debugging are still on."""
    name = "debug switches"
    settings = {**nccl_settings(files), **environ}
    found = [
        (variable, settings[variable], effect)
        for variable, values, effect in SWITCHES
        if settings.get(variable, "").lower() in values
    ]
    if not found:
        return Finding(name, OK, "none on")
    value = "; ".join(f"{variable}={setting}: {effect}" for variable, setting, effect in found)
    remedy = f"unset {' '.join(variable for variable, _, _ in found)}, unless this machine needs it"
    if any(variable not in environ for variable, _, _ in found):
        remedy += f" (set in {' or '.join(map(str, files))})"
    return Finding(name, WARN, value, remedy)


def nccl_settings(files: tuple[Path, ...] = NCCL_FILES) -> dict[str, str]:
    """Return what NCCL's configuration files set; a later file wins (and the environment wins over all)."""
    settings: dict[str, str] = {}
    for file in files:
        try:
            lines = file.expanduser().read_text().splitlines()
        except (OSError, RuntimeError):  # RuntimeError: this user has no home folder
            continue
        for line in lines:
            key, separator, value = line.partition("=")
            if separator and not key.strip().startswith("#"):
                settings[key.strip()] = value.strip()
    return settings
