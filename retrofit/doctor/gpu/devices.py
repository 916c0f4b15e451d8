"""Checks of the GPUs: visible to the driver and to torch, supported by both, not in use by other programs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from retrofit.doctor.finding import FAIL, MIB, OK, SKIP, WARN, Finding, Plan, counted, size
from retrofit.doctor.gpu.nvidia_smi import Driver, Gpu
from retrofit.doctor.gpu.torch_facts import TorchFacts, version_of
from retrofit.doctor.gpu.visible_devices import check_visible_devices, visible_gpus

NVIDIA = "0x10de"
# An idle GPU's driver keeps some for itself: 0.5 GiB on an H100.
USED_BY_OTHERS_MIB = 1024
# Error texts of nvidia-smi, and their remedies.
DRIVER_REMEDIES = (
    ("version mismatch", "the driver was updated under a running kernel module: reboot"),
    (
        "Unknown Error",
        "in a container: the host took the devices away (often at `systemctl daemon-reload`); restart the container",
    ),
    ("couldn't communicate", "load or reinstall the driver: sudo modprobe nvidia; after a kernel update: reboot"),
    ("GPU is lost", "reboot; if it comes back, look at power and cooling (`dmesg | grep -i xid`)"),
    ("no answer", "a GPU or its driver hangs: see `dmesg | grep -i xid`, then reboot"),
)


def gpu_findings(plan: Plan, driver: Driver, facts: TorchFacts, environ: Mapping[str, str]) -> list[Finding]:
    """Return the findings about GPUs; without a GPU a single SKIP follows that of the driver."""
    first = check_driver(driver, facts, nvidia_devices_on_bus())
    visible_devices = environ.get("CUDA_VISIBLE_DEVICES")
    if facts.hip:
        return [first, check_count(plan, facts, driver, visible_devices)]
    if not driver.gpus:
        return [first, Finding("GPUs", SKIP, "nothing to check without a GPU")]
    shown = visible_gpus(visible_devices, driver.gpus).indices
    used = [driver.gpus[index] for index in shown] or list(driver.gpus)
    return [
        first,
        check_visible_devices(visible_devices, driver.gpus),
        check_count(plan, facts, driver, visible_devices),
        check_models(used, environ.get("CUDA_DEVICE_ORDER", "")),
        check_cuda_version(driver, facts),
        check_architectures(facts),
        check_nccl(facts),
        check_memory_in_use(used, facts),
        check_compute_mode(used),
        check_mig(used),
    ]


def nvidia_devices_on_bus(devices: Path = Path("/sys/bus/pci/devices")) -> int:
    """Return the number of NVIDIA GPUs on the PCI bus, seen without any driver, also from inside a container."""
    count = 0
    for device in devices.glob("*"):
        try:
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
        except OSError:
            continue
        count += vendor == NVIDIA and kind.startswith("0x03")  # display and 3D controllers
    return count


def check_driver(driver: Driver, facts: TorchFacts, num_on_bus: int) -> Finding:
    """Check whether the driver answers and lists GPUs."""
    name = "NVIDIA driver"
    if facts.hip:
        return Finding(name, SKIP, f"torch is built for ROCm {facts.hip}")
    if driver.gpus:
        return Finding(name, OK, f"{driver.version}, serves CUDA up to {driver.cuda or 'an unknown version'}")
    container = "in a container: docker run --gpus all (the host needs nvidia-container-toolkit)"
    if driver.installed:
        seen = driver.error or "nvidia-smi lists no GPU"
        remedy = next((remedy for words, remedy in DRIVER_REMEDIES if words in seen), container)
        return Finding(name, FAIL, seen, remedy)
    if num_on_bus:
        seen = f"{counted(num_on_bus, 'NVIDIA GPU')} on the PCI bus, but no nvidia-smi"
        return Finding(name, FAIL, seen, f"{container}; else install the driver")
    if facts.num_gpus:
        return Finding(name, SKIP, f"no nvidia-smi, though torch sees {counted(facts.num_gpus, 'GPU')}")
    remedy = f"nothing, if this machine has no GPU; {container}; SLURM: --gres=gpu:N"
    return Finding(name, WARN, "no nvidia-smi and no NVIDIA GPU on the PCI bus: training runs on the CPU", remedy)


def check_count(plan: Plan, facts: TorchFacts, driver: Driver, visible_devices: str | None) -> Finding:
    """Check whether torch sees the GPUs that the driver lists, one for each process."""
    name = "GPUs"
    if not facts.torch:
        return Finding(name, SKIP, f"the driver lists {len(driver.gpus)}; torch cannot be imported")
    if not facts.num_gpus:
        value, remedy = why_torch_sees_none(facts, visible_devices)
        return Finding(name, FAIL, f"torch sees none, the driver lists {len(driver.gpus)}: {value}", remedy)
    broken = [f"GPU {index}: {gpu['error']}" for index, gpu in enumerate(facts.gpus) if "error" in gpu]
    if broken:
        remedy = "busy: end the other program (nvidia-smi shows it); lost: reboot, see `dmesg | grep -i xid`"
        return Finding(name, FAIL, "; ".join(broken), remedy)
    names = sorted({gpu["name"] for gpu in facts.gpus})
    smallest = min((gpu["total"] for gpu in facts.gpus), default=0)
    value = f"{facts.num_gpus} x {' / '.join(names)}, {size(smallest)} each" if names else f"{facts.num_gpus}"
    if facts.num_gpus == 1 and plan.ranks <= 2:
        remedy = "one GPU takes one process; for more GPUs: widen CUDA_VISIBLE_DEVICES, docker run --gpus all"
        return Finding(name, WARN, value, remedy)
    if facts.num_gpus < plan.ranks:
        remedy = f"start one process per GPU: --nproc_per_node={facts.num_gpus}"
        return Finding(name, FAIL, f"{value}, for {plan.ranks} processes", remedy)
    return Finding(name, OK, value)


def why_torch_sees_none(facts: TorchFacts, visible_devices: str | None) -> tuple[str, str]:
    """Return why torch sees no GPU on a machine that has some, and what to do."""
    if facts.cuda is None:
        install = f"{sys.executable} -m pip install --force-reinstall torch torchvision"
        return f"this torch ({facts.torch}) is built for the CPU only", f"{install} (choose CUDA on pytorch.org)"
    if visible_devices is not None:
        return f"CUDA_VISIBLE_DEVICES={visible_devices!r}", "unset CUDA_VISIBLE_DEVICES"
    reason = facts.reason or facts.error or "no reason given"
    if "too old" in reason:
        return reason, f"update the driver, or install a torch for an older CUDA than {facts.cuda} from pytorch.org"
    if "802" in reason or "not yet initialized" in reason:
        return reason, "GPUs connected by an NVSwitch need it: sudo systemctl start nvidia-fabricmanager"
    if not Path("/dev/nvidia-uvm").exists():
        return f"{reason} (/dev/nvidia-uvm is missing)", "sudo nvidia-modprobe -u -c=0; in a container: --gpus all"
    return reason, "compare `nvidia-smi` with `python -c 'import torch; torch.cuda.init()'`; then reboot"


def check_models(gpus: Sequence[Gpu], order: str) -> Finding:
    """Check whether all GPUs are of one model: the slowest one sets the pace."""
    name = "GPU models"
    models = [gpu.name for gpu in gpus]
    value = ", ".join(f"{models.count(model)} x {model}" for model in dict.fromkeys(models))
    if len(set(models)) == 1:
        return Finding(name, OK, value)
    remedy = "every step waits for the slowest, and the smallest memory limits the batch: choose one model"
    if order != "PCI_BUS_ID":
        remedy += "; CUDA numbers mixed GPUs fastest first, nvidia-smi does not: export CUDA_DEVICE_ORDER=PCI_BUS_ID"
    return Finding(name, WARN, value, remedy)


def check_cuda_version(driver: Driver, facts: TorchFacts) -> Finding:
    """Check whether the driver serves the CUDA version that torch was built for."""
    name = "driver and CUDA"
    if not facts.cuda or not driver.cuda:
        return Finding(name, SKIP, "torch or the driver does not report its CUDA version")
    value = f"torch is built for CUDA {facts.cuda}, driver {driver.version} serves up to {driver.cuda}"
    built, served = version_of(facts.cuda)[:2], version_of(driver.cuda)[:2]
    if built <= served:
        return Finding(name, OK, value)
    if built[0] > served[0] and not facts.num_gpus:
        remedy = f"update the driver, or install a torch for CUDA {driver.cuda} or older from pytorch.org"
        return Finding(name, FAIL, value, remedy)
    remedy = "torch's own kernels run; those compiled at run time may not: update the driver"
    return Finding(name, WARN, value, remedy)


def check_architectures(facts: TorchFacts) -> Finding:
    """Check whether torch holds kernels for each GPU."""
    name = "GPU architecture"
    known = [(gpu["name"], tuple(gpu["capability"])) for gpu in facts.gpus if "capability" in gpu]
    if not known or not facts.architectures:
        return Finding(name, SKIP, "torch does not report it")
    without = [
        f"{model} (sm_{major}{minor})"
        for model, (major, minor) in known
        if not runs_on((major, minor), facts.architectures)
    ]
    value = f"torch has kernels for {' '.join(facts.architectures)}"
    if without:
        remedy = "install a torch build that has them, from pytorch.org (newest for new GPUs, older for old ones)"
        return Finding(name, FAIL, f"{value}; none for {', '.join(sorted(set(without)))}", remedy)
    return Finding(name, OK, value)


def runs_on(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Return whether kernels built for `architectures` run on a GPU of this compute capability.

    Machine code (sm_80) runs on the same major and a newer minor version; PTX (compute_80) on everything newer.
    """
    major, minor = capability
    for architecture in architectures:
        kind, _, number = architecture.partition("_")
        digits = number.rstrip("af")
        built = (int(digits[:-1] or 0), int(digits[-1])) if digits.isdigit() else (0, 0)
        exact = number.endswith("a")  # sm_90a: for this version only
        if kind == "sm" and (built == capability if exact else built[0] == major and built[1] <= minor):
            return True
        if kind == "compute" and not exact and (0, 0) < built <= capability:
            return True
    return False


def check_nccl(facts: TorchFacts) -> Finding:
    """Check whether torch can talk between GPUs."""
    if facts.nccl is None:
        remedy = "this torch build lacks NCCL, GPUs would talk through gloo; install one from pytorch.org"
        return Finding("NCCL", WARN, "none", remedy)
    return Finding("NCCL", OK, facts.nccl)


def check_memory_in_use(gpus: Sequence[Gpu], facts: TorchFacts) -> Finding:
    """Check whether other programs use the memory of these GPUs."""
    name = "GPU memory in use"
    taken = [gpu for gpu in gpus if gpu.processes or (gpu.used_mib or 0) > USED_BY_OTHERS_MIB]
    if not taken:
        free = min((gpu["free"] for gpu in facts.gpus if "free" in gpu), default=0)
        return Finding(name, OK, f"no other program; at least {size(free)} free" if free else "no other program")
    seen = []
    for gpu in taken:
        users = ", ".join(f"pid {one.pid} {Path(one.name).name}" for one in gpu.processes) or "processes not shown"
        used, total = size((gpu.used_mib or 0) * MIB), size((gpu.total_mib or 0) * MIB)
        seen.append(f"GPU {gpu.index}: {used} of {total} ({users})")
    free_ones = ",".join(str(gpu.index) for gpu in gpus if gpu not in taken)
    remedy = f"use the others: export CUDA_VISIBLE_DEVICES={free_ones}; or " if free_ones else ""
    remedy += "wait; or end what is left of an old training: kill PID (fuser -v /dev/nvidia* names hidden ones)"
    return Finding(name, WARN, "; ".join(seen), remedy)


def check_compute_mode(gpus: Sequence[Gpu]) -> Finding:
    """Check whether the GPUs take the processes of a training."""
    name = "compute mode"
    modes = {gpu.index: gpu.compute_mode for gpu in gpus if gpu.compute_mode != "Default"}
    if not modes:
        return Finding(name, OK, "Default on every GPU")
    value = ", ".join(f"GPU {index}: {mode}" for index, mode in modes.items())
    remedy = f"sudo nvidia-smi -i {','.join(map(str, modes))} -c DEFAULT"
    if "Prohibited" in modes.values():
        return Finding(name, FAIL, value, remedy)
    return Finding(name, WARN, f"{value}: one process at a time, a second one ends with 'device busy'", remedy)


def check_mig(gpus: Sequence[Gpu]) -> Finding:
    """Check whether GPUs are divided into instances, of which a process sees only one."""
    divided = ",".join(str(gpu.index) for gpu in gpus if gpu.mig)
    if not divided:
        return Finding("MIG", OK, "off")
    remedy = f"use whole GPUs: sudo nvidia-smi -i {divided} -mig 0"
    return Finding("MIG", FAIL, f"on for GPU {divided}: a process sees one instance only", remedy)
