"""Check by all-reduce; after a failure, find the setting that makes it work."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from retrofit.doctor.finding import FAIL, MIB, OK, SKIP, WARN, Finding, Plan, counted, size
from retrofit.doctor.gpu.p2p import ACS_REMEDY
from retrofit.doctor.gpu.torch_facts import TorchFacts
from retrofit.doctor.network.allreduce import DEADLINE_S, Outcome, all_reduce
from retrofit.doctor.network.interfaces import Interface

SLOW_GB_PER_S = 1.0  # PCIe 3.0 through the machine's memory reaches several
OUTPUT_LINES = 4  # of each rank in the table; the JSON document has all
HANGING_FRAMES = 3
# Python's source lines, which are indented, and the C++ frames of torch.
NOISE = r"\s|Traceback|Exception raised from|frame #|<omitting|(Current )?[Tt]hread 0x|Timeout "


@dataclass(frozen=True)
class Trial:
    """A setting that works around one known cause: if the test passes with it, that is the cause."""

    settings: Mapping[str, str]
    remedy: str


def backends_to_test(plan: Plan, facts: TorchFacts) -> list[str]:
    """Return the backends that this training will use: gloo for counts and on the CPU, nccl between GPUs."""
    backends = ["gloo"] if "gloo" in facts.backends else []
    if "nccl" in facts.backends and facts.num_gpus >= plan.ranks:
        backends.append("nccl")
    return backends


def ranks_to_start(plan: Plan, cores: int, num_gpus: int) -> int:
    """Return how many processes the test starts: the plan's, but not many more than this machine can run at once."""
    return min(plan.ranks, max(2, cores, num_gpus))


def check_all_reduce(
    backend: str,
    num_ranks: int,
    interfaces: Sequence[Interface],
    say: Callable[[str], None],
    deadline_s: float = DEADLINE_S,
) -> tuple[Finding, Outcome | None]:
    """Run the test, and when it fails run it again with the settings that are known to help."""
    name = f"all-reduce, {backend}"
    if num_ranks < 2:
        return Finding(name, SKIP, "a single process has no other rank"), None
    say(f"all-reduce of {num_ranks} processes over {backend}, at most {deadline_s:.0f} s ...")
    outcome = all_reduce(backend, num_ranks, deadline_s)
    if not outcome.problem:
        return _good(name, backend, num_ranks, outcome, interfaces), outcome
    for trial in trials(backend, interfaces):
        setting = " ".join(f"{variable}={value}" for variable, value in trial.settings.items())
        say(f"that failed ({outcome.problem}); again with {setting} ...")
        if not all_reduce(backend, num_ranks, deadline_s, trial.settings, largest=MIB).problem:
            remedy = f"it works with {setting}: {trial.remedy}"
            return Finding(name, FAIL, _failure(outcome), remedy), outcome
    remedy = "fix what else is WARN or FAIL; the processes' full output: retrofit doctor --json"
    if backend == "nccl":
        remedy += ", with NCCL_DEBUG=INFO"
    return Finding(name, FAIL, _failure(outcome), remedy), outcome


def trials(backend: str, interfaces: Sequence[Interface]) -> list[Trial]:
    """Return the settings to try when the test fails, the likeliest cause first."""
    loopback = next((one.name for one in interfaces if one.is_loopback and one.is_up), "lo")
    others = [
        one.name for one in interfaces if one.is_up and one.addresses and not one.is_loopback and not one.is_virtual
    ]
    lasting = (
        f"export {{}}={loopback} on one machine, {others[0] if others else 'the interface to the others'} on several"
    )
    if backend == "gloo":
        remedy = "gloo talks over the wrong interface or the host's name is wrong: " + lasting
        return [Trial({"GLOO_SOCKET_IFNAME": loopback}, remedy.format("GLOO_SOCKET_IFNAME"))]
    return [
        Trial({"NCCL_P2P_DISABLE": "1"}, f"GPUs do not reach each other's memory: {ACS_REMEDY}"),
        Trial(
            {"NCCL_SOCKET_IFNAME": loopback},
            "NCCL starts on the wrong interface: " + lasting.format("NCCL_SOCKET_IFNAME"),
        ),
        Trial({"NCCL_SHM_DISABLE": "1"}, "shared memory is too small for NCCL: docker run --ipc=host or --shm-size=8g"),
    ]


def _good(name: str, backend: str, num_ranks: int, outcome: Outcome, interfaces: Sequence[Interface]) -> Finding:
    speeds = ", ".join(
        f"{size(one.num_bytes)} at {_gb_per_s(one.bus_bandwidth(num_ranks))}"
        for one in outcome.measured
        if one.num_bytes >= MIB
    )
    first = outcome.measured[0]
    value = f"{counted(num_ranks, 'process', 'processes')}, all sums exact; {size(first.num_bytes)} in "
    value += f"{first.seconds * 1e6:.0f} µs; {speeds} GB/s (busbw)"
    if backend == "gloo" and outcome.addresses:
        value += f"; over {', '.join(_interface(address, interfaces) for address in outcome.addresses)}"
    if backend == "nccl" and outcome.measured[-1].bus_bandwidth(num_ranks) < SLOW_GB_PER_S:
        remedy = "see GPU peer access; NCCL_DEBUG=INFO in a training shows the path that NCCL takes: P2P is direct, "
        remedy += "SHM goes through the machine's memory, NET through sockets"
        return Finding(name, WARN, value, remedy)
    return Finding(name, OK, value)


def _gb_per_s(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}" if number >= 1 else f"{number:.2f}"


def _failure(outcome: Outcome) -> str:
    """Return the problem, and the last messages of each process; a message of several ranks appears once."""
    ranks_of: dict[str, list[str]] = {}
    for rank, log in enumerate(outcome.ranks):
        for line in telling_lines(log.output):
            ranks_of.setdefault(line, []).append(str(rank))
    said = [f"rank {', '.join(ranks)}: {line}" for line, ranks in ranks_of.items()]
    return "\n".join([outcome.problem, *said])


def telling_lines(output: str) -> list[str]:
    """Return the lines that help a user: messages, and the innermost functions of a process that hangs."""
    messages, frames = [], []
    for line in output.splitlines():
        line = re.sub(r"^\[([WEIF])\d{4} [\d:.]+ ", r"[\1 ", line)  # the time makes the same message another one
        frame = re.match(r'  File ".*?([^/"]+)", line (\d+) in (\S+)', line)  # of faulthandler, the innermost first
        if frame:
            frames.append(f"{frame.group(3)} ({frame.group(1)}:{frame.group(2)})")
        elif line.strip() and not re.match(NOISE, line):
            messages.append(line.rstrip())
    hangs = [f"hangs in {', called from '.join(frames[:HANGING_FRAMES])}"] if frames else []
    return [*messages[-OUTPUT_LINES:], *hangs]


def _interface(address: str, interfaces: Sequence[Interface]) -> str:
    names = [one.name for one in interfaces if address in one.addresses]
    return f"{names[0]} ({address})" if names else address
