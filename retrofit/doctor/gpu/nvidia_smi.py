"""Read the GPUs and their topology from nvidia-smi."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from xml.etree import ElementTree

from retrofit.doctor.child import run

DEADLINE_S = 30.0  # eight GPUs without persistence mode take several seconds


@dataclass(frozen=True)
class GpuProcess:
    """A process that uses a GPU's memory."""

    pid: int
    name: str
    memory_mib: int | None  # None: the driver does not report it


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine, as the driver lists it."""

    index: int
    name: str
    uuid: str
    total_mib: int | None
    used_mib: int | None
    compute_mode: str  # "Default", "Exclusive_Process", "Prohibited"
    mig: bool  # divided into MIG instances
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True)
class Driver:
    """The answer of nvidia-smi; `error` says why there is none."""

    error: str = ""
    installed: bool = True
    version: str = ""
    cuda: str = ""  # the newest CUDA version that the driver serves
    gpus: tuple[Gpu, ...] = ()


def ask_driver(deadline_s: float = DEADLINE_S) -> Driver:
    """Run `nvidia-smi -q -x` and return its answer."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return Driver(error="no nvidia-smi", installed=False)
    ended = run([command, "-q", "-x"], deadline_s)
    if ended.status is None:
        return Driver(error=f"nvidia-smi gave no answer within {deadline_s:.0f} s")
    if ended.status != 0:
        # It writes its errors to stdout.
        return Driver(error=" ".join((ended.stdout + ended.stderr).split()) or f"nvidia-smi: status {ended.status}")
    return parse_xml(ended.stdout)


def ask_topology(deadline_s: float = DEADLINE_S) -> dict[tuple[int, int], str]:
    """Return how each pair of GPUs is connected, from `nvidia-smi topo -m`; empty when it fails."""
    command = shutil.which("nvidia-smi")
    ended = run([command, "topo", "-m"], deadline_s) if command else None
    return parse_topology(ended.stdout) if ended and ended.status == 0 else {}


def parse_xml(text: str) -> Driver:
    """Parse the output of `nvidia-smi -q -x`. A value that is missing or N/A is unknown, not zero."""
    try:
        log = ElementTree.fromstring(text.strip())
    except ElementTree.ParseError as error:
        return Driver(error=f"nvidia-smi -q -x printed no XML ({error})")
    gpus = tuple(_gpu(index, element) for index, element in enumerate(log.iter("gpu")))
    return Driver(version=_text(log, "driver_version"), cuda=_text(log, "cuda_version"), gpus=gpus)


def parse_topology(text: str) -> dict[tuple[int, int], str]:
    """Return `{(0, 1): "NV12", ...}` from the matrix of `nvidia-smi topo -m`, network cards left out."""
    lines = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]  # its heading is underlined
    heading = next((words for words in lines if words[:1] == ["GPU0"]), [])
    # A row that begins like the heading: GPU0 X NV12 ...; the GPU columns come first.
    count = len([word for word in heading if re.fullmatch(r"GPU\d+", word)])
    links: dict[tuple[int, int], str] = {}
    for words in lines:
        row = re.fullmatch(r"GPU(\d+)", words[0]) if words else None
        if row is None or words is heading:
            continue
        for other, link in enumerate(words[1 : count + 1]):
            if link != "X":
                links[int(row.group(1)), other] = link
    return links


def _gpu(index: int, element: ElementTree.Element) -> Gpu:
    return Gpu(
        index=index,
        name=_text(element, "product_name"),
        uuid=_text(element, "uuid"),
        total_mib=_mib(_text(element, "fb_memory_usage/total")),
        used_mib=_mib(_text(element, "fb_memory_usage/used")),
        compute_mode=_text(element, "compute_mode") or "Default",
        mig=_text(element, "mig_mode/current_mig") == "Enabled",
        processes=tuple(
            GpuProcess(int(pid), _text(one, "process_name"), _mib(_text(one, "used_memory")))
            for one in element.iter("process_info")
            if (pid := _text(one, "pid")).isdigit() and "C" in _text(one, "type")  # a desktop's are G
        ),
    )


def _text(element: ElementTree.Element, path: str) -> str:
    text = (element.findtext(path) or "").strip()
    return "" if text in ("N/A", "[N/A]", "Not Found") else text


def _mib(text: str) -> int | None:
    match = re.match(r"(\d+) MiB", text)
    return int(match.group(1)) if match else None
