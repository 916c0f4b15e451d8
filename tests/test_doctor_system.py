"""What `retrofit doctor` says about memory, limits, cores, disks and the clock of machines that lack some of each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from doctor_machine import environment, finding_of, needs_root, needs_unshare

from retrofit.doctor.finding import FAIL, GIB, MIB, OK, SKIP, WARN, Finding, Plan, size
from retrofit.doctor.system import clock, memory
from retrofit.doctor.system.cgroup import Limits, read_limits
from retrofit.doctor.system.cpu import check_cores, check_quota, check_threads
from retrofit.doctor.system.ulimits import check_processes

PLAN = Plan(ranks=2, workers=4)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (64 * MIB, "64 MiB"), (8 * GIB, "8 GiB"), (1.5 * GIB, "1.5 GiB")],
)
def test_sizes_are_printed_with_units(num_bytes: float, text: str) -> None:
    assert size(num_bytes) == text


def test_a_remedy_belongs_to_what_is_wrong() -> None:
    with pytest.raises(AssertionError):
        Finding("x", WARN, "something")
    with pytest.raises(AssertionError):
        Finding("x", OK, "something", "do this")
    with pytest.raises(AssertionError):
        Finding("x", "GOOD", "something")


SHARED = """
from retrofit.doctor.system.memory import *
check_shared_memory(Plan(2, {workers}))
"""


def mounted(options: str) -> str:
    return f"mount -t tmpfs -o {options} none /dev/shm"


@needs_unshare
def test_shared_memory_of_a_container_is_too_small() -> None:
    found = finding_of(SHARED.format(workers=4), mounted("size=64m"), "-m")
    assert found.status == FAIL and "64 MiB free of 64 MiB" in found.value
    assert "--ipc=host" in found.remedy and "--shm-size=8g" in found.remedy


@needs_unshare
def test_shared_memory_larger_than_dockers_and_smaller_than_the_need_is_a_warning() -> None:
    found = finding_of(SHARED.format(workers=4), mounted("size=300m"), "-m")
    assert found.status == WARN and "of 300 MiB" in found.value
    found = finding_of(SHARED.format(workers=60), mounted("size=300m"), "-m")
    assert "--shm-size=16g" in found.remedy  # 120 workers can hold 9.4 GiB


@needs_unshare
def test_little_shared_memory_is_enough_without_workers() -> None:
    assert finding_of(SHARED.format(workers=0), mounted("size=64m"), "-m").status == OK


@needs_unshare
def test_files_of_killed_trainings_in_shared_memory_are_named() -> None:
    before = mounted("size=800m") + "; head -c 200M /dev/zero > /dev/shm/torch_4711_1_0; touch /dev/shm/other"
    found = finding_of(SHARED.format(workers=4), before, "-m")
    assert found.status == WARN and "600 MiB free of 800 MiB" in found.value
    assert "1 file of torch or NCCL (torch_4711_1_0)" in found.remedy


def test_a_system_without_shared_memory_is_not_judged(tmp_path: Path) -> None:
    assert memory.check_shared_memory(PLAN, tmp_path / "none").status == SKIP


DISK = """
from pathlib import Path
from retrofit.doctor.system.disk import check_disk
check_disk("disk", Path("/dev/shm"))
"""


@needs_unshare
@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        ("size=900m", FAIL, "900 MiB free"),
        ("size=5g", WARN, "5 GiB free"),
        ("size=20g", OK, "20 GiB free"),
        ("size=20g,nr_inodes=50", FAIL, "more files"),
        ("size=20g,ro", FAIL, "may not be written to"),
    ],
)
def test_disks_that_are_full_or_nearly_so(options: str, status: str, words: str) -> None:
    found = finding_of(DISK, mounted(options), "-m")
    assert found.status == status and words in found.value


OPEN_FILES = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, {limits})
from retrofit.doctor.system.ulimits import *
check_open_files(Plan(2, {workers}))
"""


@pytest.mark.parametrize(
    ("limits", "workers", "status", "remedy"),
    [
        ((60, 2000), 4, FAIL, "ulimit -n 2000"),
        ((300, 2000), 4, WARN, "ulimit -n 2000"),
        ((300, 300), 4, WARN, "--ulimit nofile"),
        ((1024, 2000), 4, OK, ""),
        ((1024, 4000), 64, WARN, "ulimit -n 4000"),
    ],
)
def test_the_limit_of_open_files(limits: tuple[int, int], workers: int, status: str, remedy: str) -> None:
    found = finding_of(OPEN_FILES.format(limits=limits, workers=workers))
    assert found.status == status and remedy in found.remedy and str(limits[0]) in found.value


LOADER_WITH_LIMIT = """
import resource, sys
import torch
from torch.utils.data import DataLoader, TensorDataset
limit, workers = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
data = TensorDataset(torch.zeros(80, 3, 8, 8), torch.zeros(80), torch.zeros(80))
for batch in DataLoader(data, batch_size=4, num_workers=workers):
    pass
print("finished")
"""


def test_a_loader_runs_out_of_files_where_the_check_predicts_it() -> None:
    from retrofit.doctor.system.ulimits import LEAST_FILES, LEAST_FILES_PER_WORKER

    def finishes(limit: int) -> bool:
        command = [sys.executable, "-W", "ignore", "-c", LOADER_WITH_LIMIT, str(limit), "6"]
        return (
            "finished" in subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300).stdout
        )

    assert not finishes((LEAST_FILES + 6 * LEAST_FILES_PER_WORKER) // 2)
    assert finishes(256 + 6 * 32)  # what is said to be enough


# Root is exempt from this limit; the process becomes another user once everything is imported.
PROCESSES = """
import os, resource, psutil
from retrofit.doctor.system.cgroup import Limits
from retrofit.doctor.system.ulimits import *
resource.setrlimit(resource.RLIMIT_NPROC, (50, 50))
os.setuid(54321)
check_processes(Plan(2, 4), Limits())
"""


@needs_root
def test_the_limit_of_processes_of_a_user() -> None:
    found = finding_of(PROCESSES)
    assert found.status == WARN and "1 of 50 processes" in found.value and "ulimit -u" in found.remedy


def test_the_limit_of_processes_of_a_container() -> None:
    assert check_processes(PLAN, Limits(pids=100, num_pids=95)).status == FAIL
    found = check_processes(PLAN, Limits(pids=100, num_pids=20))
    assert found.status == WARN and "20 of 100" in found.value and "--pids-limit" in found.remedy
    assert check_processes(PLAN, Limits(pids=2000, num_pids=20)).status != WARN


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def membership(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "membership"
    path.write_text(text)
    return path


def test_limits_of_control_groups_version_2(tmp_path: Path) -> None:
    mount = tmp_path / "cgroup"
    write(
        mount / "job" / "step",
        memory__max="max",
        cpu__max="max 100000",
        pids__max="max",
        memory__events="oom 3\noom_kill 2",
    )
    write(mount / "job", memory__max=str(8 * GIB), cpu__max="150000 100000", pids__max="512", pids__current="17")
    write(mount, cgroup__procs="")
    limits = read_limits(mount, membership(tmp_path, "0::/job/step\n"))
    assert limits == Limits(8 * GIB, 1.5, 512, 17, 2)


def test_the_tightest_limit_wins(tmp_path: Path) -> None:
    mount = tmp_path / "cgroup"
    write(mount / "job" / "step", memory__max=str(4 * GIB), cpu__max="800000 100000")
    write(mount / "job", memory__max=str(8 * GIB), cpu__max="400000 100000")
    limits = read_limits(mount, membership(tmp_path, "0::/job/step\n"))
    assert (limits.memory_bytes, limits.cpus) == (4 * GIB, 4.0)


def test_limits_of_control_groups_version_1(tmp_path: Path) -> None:
    # In a container: the paths are the host's, and the container's own group is mounted as the root.
    mount = tmp_path / "cgroup"
    write(mount / "memory", memory__limit_in_bytes=str(2 * GIB), memory__oom_control="under_oom 0\noom_kill 1")
    write(mount / "cpu,cpuacct", cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000")
    write(mount / "pids", pids__max="max")
    text = "9:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n3:pids:/docker/abc\n0::/\n"
    assert read_limits(mount, membership(tmp_path, text)) == Limits(2 * GIB, 0.5, None, 0, 1)


def test_no_limits_in_control_groups(tmp_path: Path) -> None:
    mount = tmp_path / "cgroup"
    write(mount / "memory", memory__limit_in_bytes="9223372036854771712")
    write(mount / "cpu", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert read_limits(mount, membership(tmp_path, "2:memory:/\n1:cpu:/\n0::/\n")) == Limits()
    assert read_limits(mount, tmp_path / "none") == Limits()


@needs_root
def test_a_real_cpu_quota_is_seen() -> None:
    """Makes a control group of its own for one process, and removes it."""
    root = next(
        (path for path in map(Path, ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct")) if path.is_dir()), None
    )
    if root is None:
        pytest.skip(
            "needs control groups of version 1; in version 2 a group with processes cannot have limited children"
        )
    group = root / f"retrofit-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"cannot make a control group here: {error}")
    try:
        (group / "cpu.cfs_quota_us").write_text("150000")
        code = f"""
open({str(group / "cgroup.procs")!r}, "w").write("0")
from retrofit.doctor.system.cpu import *
from retrofit.doctor.system.cgroup import read_limits
check_quota(2, read_limits())
"""
        found = finding_of(code)
    finally:
        group.rmdir()
    assert found.status == WARN and found.value.startswith("1.5 of the 2 cores") and "OMP_NUM_THREADS" in found.remedy


def test_memory_that_a_container_may_not_use() -> None:
    found = memory.check_memory(PLAN, 64 * GIB, 60 * GIB, Limits(memory_bytes=4 * GIB))
    assert found.status == WARN and "may use 4 GiB" in found.value and "--memory" in found.remedy
    assert memory.check_memory(PLAN, 64 * GIB, 60 * GIB, Limits(memory_bytes=32 * GIB)).status == OK
    found = memory.check_memory(PLAN, 64 * GIB, 2 * GIB, Limits())
    assert found.status == WARN and "container" not in found.value and "end other programs" in found.remedy


def test_processes_that_were_killed_for_memory() -> None:
    found = memory.check_oom_kills(Limits(oom_kills=2))
    assert found.status == WARN and found.value.startswith("2 processes")
    assert memory.check_oom_kills(Limits()).status == OK


CORES = """
import os
os.sched_setaffinity(0, {0})
from retrofit.doctor.system.cpu import *
check_cores(Plan(2, 4), usable_cores(), Limits())
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not bind processes to cores")
def test_cores_that_this_process_may_not_use() -> None:
    found = finding_of(CORES)
    assert found.status == WARN and found.value.startswith("1 usable") and "fewer processes" in found.remedy


def test_the_number_of_workers_that_fits() -> None:
    found = check_cores(Plan(4, 8), 24, Limits())
    assert found.status == WARN and "want 36" in found.value and "--workers 5" in found.remedy
    found = check_cores(Plan(4, 5), 24, Limits(cpus=12.0))
    assert found.status == WARN and found.value.startswith("12 usable") and "--workers 2" in found.remedy
    assert check_cores(Plan(4, 5), 24, Limits()).status == OK


def test_cpu_quota() -> None:
    assert check_quota(8, Limits()).status == OK
    assert check_quota(8, Limits(cpus=8.0)).status == OK
    assert "OMP_NUM_THREADS=2 divided" in check_quota(8, Limits(cpus=2.5)).remedy


@pytest.mark.parametrize(
    ("value", "status", "remedy"),
    [
        (None, OK, ""),
        ("2", OK, ""),
        ("1", OK, ""),
        ("8", WARN, "OMP_NUM_THREADS=4"),
        ("8,2", WARN, "OMP_NUM_THREADS=4"),
        ("many", WARN, "OMP_NUM_THREADS=4"),
        ("0", WARN, "OMP_NUM_THREADS=4"),
    ],
)
def test_openmp_threads(value: str | None, status: str, remedy: str) -> None:
    found = check_threads(PLAN, 8, Limits(), {} if value is None else {"OMP_NUM_THREADS": value})
    assert found.status == status and remedy in found.remedy


def test_one_thread_for_each_process_is_never_too_many() -> None:
    assert check_threads(Plan(4, 4), 2, Limits(), {"OMP_NUM_THREADS": "1"}).status == OK


def test_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    assert clock.check_clock(PLAN, now=1_500_000_000).status == FAIL  # 2017
    monkeypatch.setattr(clock, "is_synchronised", lambda: False)
    assert clock.check_clock(PLAN).status == OK
    assert clock.check_clock(Plan(nnodes=2)).status == WARN
    monkeypatch.setattr(clock, "is_synchronised", lambda: None)
    assert clock.check_clock(PLAN).status == SKIP
    monkeypatch.setattr(clock, "is_synchronised", lambda: True)
    assert clock.check_clock(Plan(nnodes=2)).status == OK


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has adjtimex")
def test_the_kernel_is_asked_about_the_clock() -> None:
    assert clock.is_synchronised() in (True, False, None)
