"""A SLURM cluster of two nodes on one machine: Debian's slurmctld and slurmd on the hosts of two_hosts.py.

    with two_hosts() as hosts, slurm_cluster(hosts, folder) as run:
        run("sbatch", "--nodes=2", "--wait", "train_slurm.sh", cwd=...)

munged, slurmctld and both slurmd run as root with everything they write in `folder`, without cgroups and accounting.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from two_hosts import TwoHosts

START_S = 20.0
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "sinfo", "scontrol")

CONFIGURATION = """
ClusterName=test
SlurmctldHost={this}({address})
SlurmctldPort=17002
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/linear
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
KillWait=60
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_no_slurm() -> str | None:
    """Return why this machine cannot have a SLURM cluster, or None if it can (two hosts given)."""
    missing = [name for name in COMMANDS if shutil.which(name, path=PATH) is None]
    return f"{', '.join(missing)} not found (apt-get install slurm-wlm munge)" if missing else None


@contextmanager
def slurm_cluster(hosts: TwoHosts, folder: Path) -> Iterator[Callable[..., subprocess.CompletedProcess]]:
    """Start the cluster; the result runs a command in a folder (`cwd`) of the first host. Raises RuntimeError."""
    for name in ("state", *hosts.host_names):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(1024))
    configuration = folder / "slurm.conf"
    configuration.write_text(_configuration(hosts, folder))
    # Named, because `ip netns exec` shows an empty /sys/fs/cgroup, in which slurmd looks for the version even unused.
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
    environ = {**os.environ, "PATH": PATH, "SLURM_CONF": str(configuration)}
    files = [f"--{name}={folder}/munge.{name.split('-')[0]}" for name in ("socket", "key-file", "pid-file", "log-file")]
    daemons = [
        (0, ["munged", "--force", "--foreground", *files, f"--seed-file={folder}/munge.seed"]),
        (0, ["slurmctld", "-D"]),
        *((number, ["slurmd", "-D", "-N", name]) for number, name in enumerate(hosts.host_names)),
    ]
    started = []

    def run(*command: str, cwd: Path = folder, **variables: str) -> subprocess.CompletedProcess:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": cwd}
        process = hosts.popen(0, command, env={**environ, **variables}, **options)
        output, _ = process.communicate(timeout=600)
        return subprocess.CompletedProcess(command, process.returncode, output)

    try:
        for number, command in daemons:
            with (folder / f"{command[0]}.out").open("a") as output:
                started.append(hosts.popen(number, command, env=environ, stdout=output, stderr=output, cwd=folder))
            if command[0] == "munged":
                _wait_until((folder / "munge.socket").exists, folder)
        _wait_until(lambda: run("sinfo", "--noheader", "--format=%D %t").stdout.split() == ["2", "idle"], folder)
        yield run
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(30)


def _configuration(hosts: TwoHosts, folder: Path) -> str:
    this = socket.gethostname()
    nodes = [
        f"NodeName={name} NodeHostname={this} NodeAddr={address} Port={17003 + number} CPUs=2 State=UNKNOWN"
        for number, (name, address) in enumerate(zip(hosts.host_names, hosts.addresses))
    ]
    values = {"this": this, "address": hosts.addresses[0], "folder": folder, "nodes": "\n".join(nodes)}
    return CONFIGURATION.format(**values)


def _wait_until(condition: Callable[[], bool], folder: Path) -> None:
    deadline = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > deadline:
            logs = [f"--- {path.name}\n{path.read_text()[-2000:]}" for path in folder.glob("*.[lo][ou][gt]")]
            raise RuntimeError(f"the cluster did not start within {START_S:g} s\n" + "\n".join(logs))
        time.sleep(0.2)
