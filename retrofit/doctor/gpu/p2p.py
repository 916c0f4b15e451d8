"""Check of peer access: GPUs read each other's memory directly, or through the memory of the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from retrofit.doctor.finding import OK, SKIP, WARN, Finding
from retrofit.doctor.gpu.torch_facts import TorchFacts

# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
ACS_REMEDY = (
    "if the first collective hangs or is slow: export NCCL_P2P_DISABLE=1; for good, switch PCI ACS off in the BIOS, "
    "and boot with iommu=pt"
)


def check_peers(facts: TorchFacts, links: Mapping[tuple[int, int], str], iommu: bool) -> Finding:
    """Check whether every GPU reads every other one's memory, and whether an IOMMU is in between."""
    name = "GPU peer access"
    count = len(facts.peers)
    if facts.num_gpus < 2:
        return Finding(name, SKIP, "fewer than two GPUs")
    if not count:
        return Finding(name, SKIP, "torch does not report it")
    blocked = [(one, other) for one in range(count) for other in range(one) if not facts.peers[one][other]]
    value = f"{_pairs(count) - len(blocked)} of {_pairs(count)} pairs directly{_links(links)}"
    if blocked:
        remedy = "slower, not wrong: data goes through /dev/shm, which must be large enough. GeForce cards have no "
        remedy += "peer access since the 40 series; other cards: " + ACS_REMEDY.split("; for good, ")[1]
        return Finding(name, WARN, f"{value}; not {_examples(blocked)}", remedy)
    if iommu and not _all_nvlink(links):
        return Finding(name, WARN, f"{value}, through an IOMMU that is on", ACS_REMEDY)
    return Finding(name, OK, value)


def iommu_translates(devices: Path = Path("/sys/class/iommu"), command_line: Path = Path("/proc/cmdline")) -> bool:
    """Return whether an IOMMU is on that may redirect what one GPU writes to another one."""
    try:
        words = command_line.read_text().split()
    except OSError:
        words = []
    return (
        devices.is_dir() and any(devices.iterdir()) and "iommu=pt" not in words and "iommu.passthrough=1" not in words
    )


def _pairs(count: int) -> int:
    return count * (count - 1) // 2


def _links(links: Mapping[tuple[int, int], str]) -> str:
    kinds = Counter(link for (one, other), link in links.items() if one < other)
    return f" ({', '.join(f'{number} x {kind}' for kind, number in sorted(kinds.items()))})" if kinds else ""


def _all_nvlink(links: Mapping[tuple[int, int], str]) -> bool:
    return bool(links) and all(link.startswith("NV") for link in links.values())


def _examples(blocked: Sequence[tuple[int, int]]) -> str:
    text = ", ".join(f"{other}-{one}" for one, other in blocked[:4])
    return text + (", ..." if len(blocked) > 4 else "")
