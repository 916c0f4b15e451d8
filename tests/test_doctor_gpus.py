"""What `retrofit doctor` says about GPUs.

No GPU is needed here: what nvidia-smi prints is text in its format, written for these tests, and what torch says about
GPUs is given as the plain values that `torch_probe` reports. What torch says on this machine is asked for real.
"""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from doctor_machine import environment

from retrofit.doctor.child import Ended, python_command, run
from retrofit.doctor.finding import FAIL, OK, SKIP, WARN, Plan
from retrofit.doctor.gpu import nvidia_smi
from retrofit.doctor.gpu.devices import (
    check_architectures,
    check_compute_mode,
    check_count,
    check_cuda_version,
    check_driver,
    check_memory_in_use,
    check_mig,
    check_models,
    check_nccl,
    gpu_findings,
    nvidia_devices_on_bus,
    runs_on,
)
from retrofit.doctor.gpu.nvidia_smi import Driver, Gpu, GpuProcess, ask_driver, ask_topology, parse_topology, parse_xml
from retrofit.doctor.gpu.p2p import check_peers, iommu_translates
from retrofit.doctor.gpu.torch_facts import TorchFacts, ask_torch, check_torch, facts_from, version_of
from retrofit.doctor.gpu.visible_devices import check_visible_devices, visible_gpus

PLAN = Plan(ranks=2, workers=4)

XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
\t<timestamp>Mon Mar  3 12:00:00 2025</timestamp>
\t<driver_version>550.54.15</driver_version>
\t<cuda_version>12.4</cuda_version>
\t<attached_gpus>2</attached_gpus>
\t<gpu id="00000000:17:00.0">
\t\t<product_name>NVIDIA A100-SXM4-80GB</product_name>
\t\t<mig_mode>
\t\t\t<current_mig>Disabled</current_mig>
\t\t\t<pending_mig>Disabled</pending_mig>
\t\t</mig_mode>
\t\t<uuid>GPU-aaaa1111-0000-0000-0000-000000000000</uuid>
\t\t<fb_memory_usage>
\t\t\t<total>81920 MiB</total>
\t\t\t<reserved>551 MiB</reserved>
\t\t\t<used>40013 MiB</used>
\t\t\t<free>41356 MiB</free>
\t\t</fb_memory_usage>
\t\t<bar1_memory_usage>
\t\t\t<total>131072 MiB</total>
\t\t\t<used>3 MiB</used>
\t\t</bar1_memory_usage>
\t\t<compute_mode>Exclusive_Process</compute_mode>
\t\t<processes>
\t\t\t<process_info>
\t\t\t\t<gpu_instance_id>N/A</gpu_instance_id>
\t\t\t\t<pid>4711</pid>
\t\t\t\t<type>C</type>
\t\t\t\t<process_name>/opt/env/bin/python</process_name>
\t\t\t\t<used_memory>39990 MiB</used_memory>
\t\t\t</process_info>
\t\t\t<process_info>
\t\t\t\t<pid>900</pid>
\t\t\t\t<type>G</type>
\t\t\t\t<process_name>/usr/lib/xorg/Xorg</process_name>
\t\t\t\t<used_memory>4 MiB</used_memory>
\t\t\t</process_info>
\t\t</processes>
\t</gpu>
\t<gpu id="00000000:65:00.0">
\t\t<product_name>NVIDIA A100-SXM4-80GB</product_name>
\t\t<mig_mode>
\t\t\t<current_mig>N/A</current_mig>
\t\t</mig_mode>
\t\t<uuid>GPU-aabb2222-0000-0000-0000-000000000000</uuid>
\t\t<fb_memory_usage>
\t\t\t<total>81920 MiB</total>
\t\t\t<used>N/A</used>
\t\t</fb_memory_usage>
\t\t<compute_mode>Default</compute_mode>
\t\t<processes>
\t\t</processes>
\t</gpu>
</nvidia_smi_log>
"""
TOPOLOGY = """\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV12\tSYS\tPXB\t0-31\t0\t\tN/A
GPU1\tNV12\t X \tNODE\tPXB\t0-31\t0\t\tN/A
GPU2\tSYS\tNODE\t X \tSYS\t32-63\t1\t\tN/A
NIC0\tPXB\tPXB\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe and the link between CPU sockets
"""

A100 = {"name": "NVIDIA A100-SXM4-80GB", "capability": [8, 0], "free": 80 * 2**30, "total": 80 * 2**30}
TWO = TorchFacts(
    torch="2.4.0",
    cuda="12.4",
    backends=["gloo", "nccl"],
    nccl="2.20.5",
    architectures=["sm_80", "sm_90"],
    num_gpus=2,
    gpus=[A100, A100],
    peers=[[True, True], [True, True]],
)


def gpus(count: int, **values: object) -> list[Gpu]:
    return [
        replace(Gpu(index, "A100", f"GPU-{index}{index}cd-0000", 81920, 400, "Default", False), **values)  # type: ignore[arg-type]
        for index in range(count)
    ]


def test_the_output_of_nvidia_smi_is_read() -> None:
    driver = parse_xml(XML)
    assert (driver.version, driver.cuda, driver.error) == ("550.54.15", "12.4", "")
    first, second = driver.gpus
    process = GpuProcess(4711, "/opt/env/bin/python", 39990)  # Xorg only draws
    uuid = "GPU-aaaa1111-0000-0000-0000-000000000000"
    assert first == Gpu(0, "NVIDIA A100-SXM4-80GB", uuid, 81920, 40013, "Exclusive_Process", False, (process,))
    assert (second.index, second.used_mib, second.mig, second.processes) == (1, None, False, ())


def test_invalid_xml_is_an_error() -> None:
    assert "no XML" in parse_xml("NVIDIA-SMI has failed").error


def test_the_topology_is_read_without_network_cards() -> None:
    links = parse_topology(TOPOLOGY)
    assert links[0, 1] == links[1, 0] == "NV12" and links[0, 2] == "SYS" and links[1, 2] == "NODE"
    assert len(links) == 6
    assert parse_topology("") == {}


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`smi(script)` puts a shell script in the place of nvidia-smi."""

    def put(script: str) -> None:
        command = tmp_path / "nvidia-smi"
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return put


def test_nvidia_smi_is_run(smi, tmp_path: Path) -> None:
    (tmp_path / "xml").write_text(XML)
    (tmp_path / "topology").write_text(TOPOLOGY)
    smi(f'[ "$*" = "-q -x" ] && exec cat {tmp_path}/xml; [ "$*" = "topo -m" ] && exec cat {tmp_path}/topology; exit 3')
    assert len(ask_driver().gpus) == 2 and ask_topology()[0, 1] == "NV12"


def test_nvidia_smi_that_fails_or_hangs(smi, monkeypatch: pytest.MonkeyPatch) -> None:
    smi("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    driver = ask_driver()
    assert driver.error == "Failed to initialize NVML: Driver/library version mismatch"
    assert ask_topology() == {}
    found = check_driver(driver, TorchFacts(), 0)
    assert found.status == FAIL and "reboot" in found.remedy
    smi("sleep 60")
    found = check_driver(ask_driver(deadline_s=0.3), TorchFacts(), 0)
    assert found.status == FAIL and "no answer" in found.value and "xid" in found.remedy
    monkeypatch.setenv("PATH", "/nowhere")
    assert ask_driver() == Driver(error="no nvidia-smi", installed=False)


def test_a_machine_without_a_driver(tmp_path: Path) -> None:
    none = Driver(error="no nvidia-smi", installed=False)
    found = check_driver(none, TorchFacts(), 0)
    assert found.status == WARN and "--gpus all" in found.remedy
    for name, vendor, kind in (("0", "0x10de", "0x030200"), ("1", "0x10de", "0x040300"), ("2", "0x8086", "0x030000")):
        (tmp_path / name).mkdir()  # a GPU, its sound card, and somebody else's GPU
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    assert nvidia_devices_on_bus(tmp_path) == 1
    found = check_driver(none, TorchFacts(), 1)
    assert found.status == FAIL and found.value.startswith("1 NVIDIA GPU on the PCI bus")
    assert check_driver(none, TorchFacts(num_gpus=1), 0).status == SKIP
    assert check_driver(none, TorchFacts(hip="6.0"), 0).status == SKIP


@pytest.mark.parametrize(
    ("value", "indices", "words"),
    [
        (None, (0, 1, 2, 3), ""),
        ("2,0", (2, 0), ""),
        ("0, 1,", (0, 1), ""),
        ("GPU-11", (1,), ""),
        ("", (), "empty string"),
        ("0,4,1", (0,), "GPU 4 does not exist (the last one is 3)"),
        ("-1", (), "-1 ends the list"),
        ("0,2,-1,1", (0, 2), "-1 ends the list"),
        ("1,1", (), "listed twice"),
        ("GPU-11,1", (), "listed twice"),
        ("0-3", (0,), "'0-3' is read as GPU 0 alone"),
        ("0 1", (0,), "read as GPU 0 alone"),
        ("0;1", (0,), "read as GPU 0 alone"),
        ("cuda:0", (), "neither a number nor a UUID"),
        ("NoDevFiles", (), "neither a number nor a UUID"),  # SLURM without --gres
        ("GPU-ff", (), "no GPU here"),
        ("GPU-", (), "several GPUs"),
    ],
)
def test_the_list_of_visible_gpus(value: str | None, indices: tuple[int, ...], words: str) -> None:
    visible = visible_gpus(value, gpus(4))
    assert visible.indices == indices
    assert words in "".join(visible.problems) and bool(words) == bool(visible.problems)
    found = check_visible_devices(value, gpus(4))
    assert found.status == (FAIL if words else OK) and words in found.value
    assert not words or "CUDA_VISIBLE_DEVICES=0,1,2,3" in found.remedy


def test_mig_instances_in_the_list_are_skipped() -> None:
    assert check_visible_devices("MIG-1234", gpus(1)).status == OK


def test_as_many_gpus_as_processes() -> None:
    driver = Driver(gpus=tuple(gpus(2)))
    found = check_count(PLAN, TWO, driver, None)
    assert found.status == OK and found.value == "2 x NVIDIA A100-SXM4-80GB, 80 GiB each"
    found = check_count(Plan(ranks=4), TWO, driver, None)
    assert found.status == FAIL and found.remedy.endswith("--nproc_per_node=2")
    assert check_count(PLAN, replace(TWO, num_gpus=1, gpus=[A100]), driver, None).status == WARN
    assert check_count(Plan(ranks=3), replace(TWO, num_gpus=1, gpus=[A100]), driver, None).status == FAIL
    found = check_count(PLAN, replace(TWO, gpus=[A100, {"error": "CUDA error: device busy"}]), driver, None)
    assert found.status == FAIL and "GPU 1: CUDA error: device busy" in found.value
    assert check_count(PLAN, TorchFacts(error="no torch"), driver, None).status == SKIP


@pytest.mark.parametrize(
    ("facts", "visible", "value", "remedy"),
    [
        (TorchFacts(torch="2.4.0+cpu"), None, "built for the CPU only", "pip install"),
        (TorchFacts(torch="2.4.0", cuda="12.4"), "", "CUDA_VISIBLE_DEVICES=''", "unset"),
        (
            TorchFacts(torch="2.4.0", cuda="12.4", reason="The NVIDIA driver on your system is too old (found 11040)."),
            None,
            "too old",
            "update the driver",
        ),
        (
            TorchFacts(torch="2.4.0", cuda="12.4", reason="Error 802: system not yet initialized"),
            None,
            "802",
            "nvidia-fabricmanager",
        ),
    ],
)
def test_why_torch_sees_no_gpu(facts: TorchFacts, visible: str | None, value: str, remedy: str) -> None:
    found = check_count(PLAN, facts, Driver(gpus=tuple(gpus(2))), visible)
    assert found.status == FAIL and "the driver lists 2" in found.value
    assert value in found.value and remedy in found.remedy


def test_gpus_of_several_models() -> None:
    assert check_models(gpus(2), "").status == OK
    found = check_models([*gpus(2), *gpus(1, name="L4")], "")
    assert found.status == WARN and found.value == "2 x A100, 1 x L4" and "CUDA_DEVICE_ORDER" in found.remedy
    assert "CUDA_DEVICE_ORDER" not in check_models([*gpus(2), *gpus(1, name="L4")], "PCI_BUS_ID").remedy


@pytest.mark.parametrize(
    ("built", "served", "num_gpus", "status"),
    [
        ("12.4", "12.4", 2, OK),
        ("11.8", "12.4", 2, OK),
        ("12.9", "12.10", 2, OK),
        ("12.4", "12.2", 2, WARN),  # the same major version: works, but for kernels made at run time
        ("13.0", "12.10", 0, FAIL),
        ("13.0", "12.10", 2, WARN),  # with NVIDIA's compatibility package
        ("12.4", "", 2, SKIP),
    ],
)
def test_the_drivers_cuda_and_torchs(built: str, served: str, num_gpus: int, status: str) -> None:
    facts = replace(TWO, cuda=built, num_gpus=num_gpus)
    assert check_cuda_version(Driver(version="550", cuda=served), facts).status == status


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((8, 0), ["sm_80"], True),
        ((8, 6), ["sm_80"], True),  # a newer minor version runs older machine code
        ((8, 0), ["sm_86"], False),
        ((9, 0), ["sm_80"], False),
        ((9, 0), ["sm_80", "compute_80"], True),  # PTX is compiled for what is newer
        ((7, 5), ["compute_80"], False),
        ((9, 0), ["sm_90a"], True),
        ((12, 0), ["sm_90", "sm_120"], True),
        ((12, 1), ["sm_120"], True),
        ((10, 3), ["sm_90a", "compute_90a"], False),
        ((6, 1), ["sm_75", "sm_80"], False),
    ],
)
def test_kernels_for_a_gpu(capability: tuple[int, int], architectures: list[str], runs: bool) -> None:
    assert runs_on(capability, architectures) is runs


def test_a_gpu_that_torch_has_no_kernels_for() -> None:
    assert check_architectures(TWO).status == OK
    found = check_architectures(replace(TWO, architectures=["sm_90", "sm_100"]))
    assert found.status == FAIL and "none for NVIDIA A100-SXM4-80GB (sm_80)" in found.value
    assert check_architectures(replace(TWO, gpus=[])).status == SKIP


def test_memory_that_others_use() -> None:
    assert check_memory_in_use(gpus(2), TWO).status == OK
    busy = parse_xml(XML).gpus
    found = check_memory_in_use(busy, TWO)
    assert found.status == WARN and found.value == "GPU 0: 39.1 GiB of 80 GiB (pid 4711 python)"
    assert "CUDA_VISIBLE_DEVICES=1;" in found.remedy
    found = check_memory_in_use(gpus(1, used_mib=5000), TWO)  # in a container the processes are not shown
    assert found.status == WARN and "processes not shown" in found.value


def test_compute_mode_and_mig_and_nccl() -> None:
    assert check_compute_mode(gpus(2)).status == OK
    found = check_compute_mode([*gpus(2), replace(gpus(1)[0], index=2, compute_mode="Exclusive_Process")])
    assert found.status == WARN and found.remedy == "sudo nvidia-smi -i 2 -c DEFAULT"
    assert check_compute_mode(gpus(1, compute_mode="Prohibited")).status == FAIL
    assert check_mig(gpus(2)).status == OK
    found = check_mig(gpus(2, mig=True))
    assert found.status == FAIL and "-i 0,1 -mig 0" in found.remedy
    assert check_nccl(TWO).value == "2.20.5" and check_nccl(TorchFacts()).status == WARN


def test_peer_access() -> None:
    nvlink, pcie = {(0, 1): "NV12", (1, 0): "NV12"}, {(0, 1): "PHB", (1, 0): "PHB"}
    found = check_peers(TWO, nvlink, iommu=True)
    assert found.status == OK and found.value == "1 of 1 pairs directly (1 x NV12)"
    assert check_peers(TWO, pcie, iommu=False).status == OK
    found = check_peers(TWO, pcie, iommu=True)
    assert found.status == WARN and "NCCL_P2P_DISABLE=1" in found.remedy and "iommu=pt" in found.remedy
    found = check_peers(replace(TWO, peers=[[True, False], [False, True]]), pcie, iommu=False)
    assert found.status == WARN and "0 of 1 pairs" in found.value and "not 0-1" in found.value
    assert check_peers(replace(TWO, num_gpus=1), {}, iommu=False).status == SKIP


def test_iommu_translation_is_detected(tmp_path: Path) -> None:
    devices, command_line = tmp_path / "iommu", tmp_path / "cmdline"
    assert not iommu_translates(devices, command_line)
    (devices / "dmar0").mkdir(parents=True)
    command_line.write_text("quiet intel_iommu=on\n")
    assert iommu_translates(devices, command_line)
    command_line.write_text("quiet intel_iommu=on iommu=pt\n")
    assert not iommu_translates(devices, command_line)


def test_all_checks_of_a_good_and_of_a_bare_machine() -> None:
    good = Driver(version="550.54.15", cuda="12.4", gpus=tuple(gpus(2)))
    found = gpu_findings(PLAN, good, TWO, {})
    assert len(found) == 10 and {one.status for one in found} == {OK}
    bare = gpu_findings(PLAN, Driver(error="no nvidia-smi", installed=False), TorchFacts(torch="2.4.0"), {})
    assert [one.status for one in bare][1:] == [SKIP]
    amd = gpu_findings(PLAN, Driver(installed=False), replace(TWO, cuda=None, hip="6.0"), {})
    assert [one.status for one in amd] == [SKIP, OK]


def test_only_visible_gpus_are_judged() -> None:
    busy = Driver(version="550.54.15", cuda="12.4", gpus=parse_xml(XML).gpus)
    shown = {one.name: one for one in gpu_findings(PLAN, busy, TWO, {"CUDA_VISIBLE_DEVICES": "1"})}
    assert shown["GPU memory in use"].status == shown["compute mode"].status == OK
    every = {one.name: one for one in gpu_findings(PLAN, busy, TWO, {})}
    assert every["GPU memory in use"].status == every["compute mode"].status == WARN


def test_torch_is_asked_in_another_process() -> None:
    import torch

    facts = ask_torch(deadline_s=200)
    assert facts.error == "" and facts.stage == "done" and facts.torch == torch.__version__
    assert facts.cuda == torch.version.cuda and facts.num_gpus == torch.cuda.device_count()
    assert "gloo" in facts.backends and check_torch(facts).status == OK
    assert facts.num_gpus or facts.reason


def _probe(tmp_path: Path, torch: str, deadline_s: float, **variables: str) -> TorchFacts:
    """Return the facts where `import torch` runs the program `torch`."""
    (tmp_path / "torch.py").write_text(torch)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from retrofit.doctor.gpu import torch_probe; "
    code += "torch_probe.main()"
    command = [python_command("")[0], "-c", code]
    return facts_from(run(command, deadline_s, environment(**variables)), deadline_s)


def test_torch_that_cannot_be_imported(tmp_path: Path) -> None:
    facts = _probe(tmp_path, "raise ImportError('libcudart.so.12: cannot open shared object file')", 60)
    found = check_torch(facts)
    assert found.status == FAIL and "libcudart.so.12" in found.value and "import torch" in found.value


def test_torch_that_hangs(tmp_path: Path) -> None:
    facts = _probe(tmp_path, "import time; time.sleep(60)", 1.5)
    assert facts.error == "no answer within 2 s to: import torch" and check_torch(facts).status == FAIL


def test_a_driver_that_hangs_or_crashes_keeps_the_earlier_results() -> None:
    told = (
        '{"stage": "import torch", "python": "3.11.7"}\nnoise\n{"stage": "start CUDA", "torch": "2.4.0", "later": 1}\n'
    )
    facts = facts_from(Ended(None, told, ""), 90)
    assert (facts.torch, facts.error) == ("2.4.0", "no answer within 90 s to: start CUDA")
    assert "xid" in check_torch(facts).remedy
    facts = facts_from(Ended(-11, told, "Fatal Python error\n"), 90)
    assert facts.error == "ended with status -11 at: start CUDA (Fatal Python error)"


def test_old_and_crippled_torch() -> None:
    assert check_torch(replace(TWO, torch="2.0.1+cu117")).status == FAIL
    assert check_torch(replace(TWO, backends=[])).status == FAIL
    assert check_torch(replace(TWO, backends=["nccl"])).status == WARN
    assert version_of("2.1.0a0+cu121") == (2, 1, 0) and version_of("2.10") > version_of("2.9")


def test_the_deadline_of_a_child_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = run(["sh", "-c", "echo said; exec sleep 60"], 0.5)
    assert (ended.status, ended.stdout) == (None, "said\n")
    assert nvidia_smi.DEADLINE_S < 60
