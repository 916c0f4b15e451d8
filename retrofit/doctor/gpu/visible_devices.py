"""Check of CUDA_VISIBLE_DEVICES: the GPUs that a process will see, and errors in the list."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from retrofit.doctor.finding import FAIL, OK, Finding, counted
from retrofit.doctor.gpu.nvidia_smi import Gpu

NAME = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Visible:
    """The GPUs that CUDA shows a process, and why they are not those that the list names."""

    indices: tuple[int, ...]  # of the driver's list, in the order of the variable
    problems: tuple[str, ...] = ()


def visible_gpus(value: str | None, gpus: Sequence[Gpu]) -> Visible:
    """Return what CUDA makes of `value` (None: not set) on a machine with `gpus`.

    CUDA reads the list up to the first entry that it does not know, and reports no error:
    https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html
    """
    if value is None:
        return Visible(tuple(range(len(gpus))))
    if not value.strip():
        return Visible((), ("it is an empty string, which hides every GPU",))
    indices: list[int] = []
    for entry in value.rstrip(", ").split(","):
        index, problem = _index_of(entry.strip(), gpus)
        if index is None:
            return Visible(tuple(indices), (problem,))
        if index in indices:
            return Visible((), (f"GPU {index} is listed twice, and CUDA then shows none",))
        if problem:
            return Visible((*indices, index), (problem,))
        indices.append(index)
    return Visible(tuple(indices))


def check_visible_devices(value: str | None, gpus: Sequence[Gpu]) -> Finding:
    """Check whether the variable shows the GPUs that it seems to show."""
    if value is None:
        return Finding(NAME, OK, "not set: every GPU is visible")
    if "MIG-" in value:
        return Finding(NAME, OK, f"{value}: MIG instances, see MIG")
    visible = visible_gpus(value, gpus)
    if not visible.problems:
        return Finding(NAME, OK, f"{value}: {len(visible.indices)} of {counted(len(gpus), 'GPU')}")
    shown = f"GPU {', '.join(map(str, visible.indices))}" if visible.indices else "no GPU"
    everything = ",".join(str(gpu.index) for gpu in gpus)
    return Finding(
        NAME,
        FAIL,
        f"{value!r}: {visible.problems[0]}; programs see {shown}",
        f"unset CUDA_VISIBLE_DEVICES, or list the GPUs with commas: export CUDA_VISIBLE_DEVICES={everything}",
    )


def _index_of(entry: str, gpus: Sequence[Gpu]) -> tuple[int | None, str]:
    """Return the GPU that `entry` names, and what is wrong with the entry."""
    named = [gpu.index for gpu in gpus if entry.startswith("GPU-") and gpu.uuid.startswith(entry)]
    if len(named) == 1:
        return named[0], ""
    if entry.startswith("GPU-"):
        return None, f"{entry} is the UUID of {'several GPUs' if named else 'no GPU here (see nvidia-smi -L)'}"
    number = re.match(r"-?\d+", entry)
    if number is None:
        return None, f"{entry!r} is neither a number nor a UUID"
    index = int(number.group())
    if index < 0:
        return None, f"{index} ends the list"
    if index >= len(gpus):
        last = f"the last one is {len(gpus) - 1}" if gpus else "there is none"
        return None, f"GPU {index} does not exist ({last})"
    if number.group() != entry:
        # CUDA reads the number at the beginning, "0-3" is not a range, "0 1" is not a list.
        return index, f"{entry!r} is read as GPU {index} alone"
    return index, ""
