"""Run all checks, in the order of the report."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from retrofit.doctor.finding import FAIL, SKIP, WARN, Finding, Plan
from retrofit.doctor.gpu.devices import gpu_findings
from retrofit.doctor.gpu.nvidia_smi import ask_driver, ask_topology
from retrofit.doctor.gpu.p2p import check_peers, iommu_translates
from retrofit.doctor.gpu.torch_facts import TorchFacts, ask_torch, check_python, check_torch
from retrofit.doctor.network.allreduce import DEADLINE_S, Outcome
from retrofit.doctor.network.allreduce_findings import backends_to_test, check_all_reduce, ranks_to_start
from retrofit.doctor.network.dns import LOOPBACK, check_host_name, check_loopback, check_master_address, is_own, resolve
from retrofit.doctor.network.interfaces import (
    check_gloo_interface,
    check_interfaces,
    check_nccl_interface,
    read_interfaces,
)
from retrofit.doctor.network.ports import check_port, chosen_port
from retrofit.doctor.system.cgroup import read_limits
from retrofit.doctor.system.clock import check_clock
from retrofit.doctor.system.cpu import check_cores, check_quota, check_threads, usable_cores
from retrofit.doctor.system.disk import check_disk
from retrofit.doctor.system.env_vars import check_launcher, check_switches, nccl_settings
from retrofit.doctor.system.memory import check_memory, check_oom_kills, check_shared_memory
from retrofit.doctor.system.ulimits import check_open_files, check_processes


@dataclass(frozen=True)
class Request:
    """The request of the command line."""

    ranks: int | None = None  # None: one per GPU, at least 2
    workers: int = 4
    nnodes: int = 1
    port: int | None = None  # None: MASTER_PORT, else 29500
    all_reduce: bool = True
    deadline_s: float = DEADLINE_S  # of each all-reduce test


@dataclass
class Examination:
    """The results of all checks."""

    plan: Plan = field(default_factory=Plan)
    findings: list[Finding] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)  # of the all-reduce, by backend


def examine(request: Request, environ: Mapping[str, str], say: Callable[[str], None]) -> Examination:
    """Run all checks; `say` is called before each slow step."""
    say("asking torch and the GPU driver ...")
    facts = ask_torch()
    plan = Plan(request.ranks or max(2, facts.num_gpus), request.workers, request.nnodes)
    findings = [
        *_guarded("PyTorch", lambda: [check_python(), check_torch(facts)]),
        *_guarded("environment", lambda: [check_launcher(facts, environ), check_switches(environ)]),
        *_guarded("GPUs", lambda: _gpus(plan, facts, environ)),
        *_guarded("system", lambda: _system(plan, environ)),
        *_guarded("network", lambda: _network(request, plan, facts, environ)),
    ]
    examination = Examination(plan, findings)
    if request.all_reduce:
        _test_all_reduce(examination, facts, request.deadline_s, say)
    else:
        findings.append(Finding("all-reduce", SKIP, "not asked for (--no-allreduce)"))
    return examination


def _gpus(plan: Plan, facts: TorchFacts, environ: Mapping[str, str]) -> list[Finding]:
    findings = gpu_findings(plan, ask_driver(), facts, environ)
    links = ask_topology() if facts.num_gpus > 1 else {}
    return [*findings, check_peers(facts, links, iommu_translates())]


def _system(plan: Plan, environ: Mapping[str, str]) -> list[Finding]:
    import psutil

    limits, cores, memory = read_limits(), usable_cores(), psutil.virtual_memory()
    return [
        *_guarded("shared memory", lambda: [check_shared_memory(plan)]),
        *_guarded(
            "memory", lambda: [check_memory(plan, memory.total, memory.available, limits), check_oom_kills(limits)]
        ),
        *_guarded("open files", lambda: [check_open_files(plan)]),
        *_guarded("processes", lambda: [check_processes(plan, limits)]),
        *_guarded("CPU cores", lambda: [check_cores(plan, cores, limits), check_quota(cores, limits)]),
        *_guarded("OMP_NUM_THREADS", lambda: [check_threads(plan, cores, limits, environ)]),
        *_guarded("disk", lambda: [check_disk("disk: this folder", Path.cwd())]),
        *_guarded("disk", lambda: [check_disk("disk: temporary", Path(tempfile.gettempdir()))]),
        *_guarded("clock", lambda: [check_clock(plan)]),
    ]


def _network(request: Request, plan: Plan, facts: TorchFacts, environ: Mapping[str, str]) -> list[Finding]:
    interfaces, host_name = read_interfaces(), socket.gethostname()
    host, master = resolve(host_name), environ.get("MASTER_ADDR", "")
    resolved_master = resolve(master) if master else host
    is_here = not master or not resolved_master.addresses or is_own(resolved_master.addresses[0], interfaces)
    wanted = environ.get("NCCL_SOCKET_IFNAME") or nccl_settings().get("NCCL_SOCKET_IFNAME", "")
    return [
        check_port(chosen_port(request.port, environ.get("MASTER_PORT", "")), is_here),
        check_loopback(resolve(LOOPBACK)),
        check_host_name(plan, host_name, host, interfaces),
        check_master_address(plan, master, resolved_master, interfaces),
        check_interfaces(plan, interfaces),
        check_gloo_interface(plan, interfaces, environ.get("GLOO_SOCKET_IFNAME", ""), host.addresses),
        check_nccl_interface(plan, interfaces, wanted, facts.num_gpus),
    ]


def _test_all_reduce(
    examination: Examination, facts: TorchFacts, deadline_s: float, say: Callable[[str], None]
) -> None:
    if any(finding.name == LOOPBACK and finding.status == FAIL for finding in examination.findings):
        examination.findings.append(Finding("all-reduce", SKIP, f"it would hang: {LOOPBACK} does not connect"))
        return
    backends = backends_to_test(examination.plan, facts)
    if not backends:
        examination.findings.append(Finding("all-reduce", SKIP, "torch has no backend to test"))
    interfaces = read_interfaces()
    num_ranks = ranks_to_start(examination.plan, usable_cores(), facts.num_gpus)
    if num_ranks < examination.plan.ranks:
        say(f"testing with {num_ranks} processes: {examination.plan.ranks} are too many for this machine's cores")
    for backend in backends:

        def test(backend: str = backend) -> list[Finding]:
            finding, outcome = check_all_reduce(backend, num_ranks, interfaces, say, deadline_s)
            if outcome is not None:
                examination.outcomes[backend] = outcome
            return [finding]

        examination.findings += _guarded(f"all-reduce, {backend}", test)


def _guarded(name: str, check: Callable[[], list[Finding]]) -> list[Finding]:
    """Return what `check` finds; an error inside it is a finding too, and the other checks continue."""
    try:
        return check()
    except Exception as error:
        value = f"this check failed: {type(error).__name__}: {error}"
        return [Finding(name, WARN, value, "look at this by hand, and report it as a defect of the check")]
