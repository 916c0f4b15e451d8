"""The measurement of a link: by the ranks of a process group, or by processes that are started for it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from retrofit.why.run import with_kit

from .link import ALL_REDUCE, Link, Measured, fitted, read_link

TIME_LIMIT_S = 300.0


class NoLink(Exception):
    """The link cannot be measured. The message says why."""


def measured_link(device: Any) -> Link:
    """Return the link between the ranks of the default group. Collective: every rank."""
    import torch.distributed as dist

    from .calls import measured_calls, measured_copies, measured_overlap

    is_blocking = device.type == "cpu"
    tables = measured_calls(device)
    overlap, copies = measured_overlap(device, tables[ALL_REDUCE]), measured_copies(device)
    measured = Measured()
    if is_blocking:
        from .strategies import measured_strategies

        measured = measured_strategies()
    ranks = dist.get_world_size()
    alpha, beta = fitted(tables[ALL_REDUCE], ranks)
    name = f"measured: {ranks} ranks, {dist.get_backend()}"
    return Link(
        name, alpha, beta, is_blocking, copies=copies, overlap=overlap, measured_ranks=ranks, tables=tables,
        measured=measured,
    )  # fmt: skip


def measure_here(ranks: int) -> Link:
    """Return the link between `ranks` processes of this machine. Raises NoLink."""
    with tempfile.TemporaryDirectory(prefix="retrofit_link_") as folder:
        output = Path(folder) / "link.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
        command += ["-m", "retrofit.plan.link", "--output", str(output)]
        environ = with_kit({**os.environ, "OMP_NUM_THREADS": "1"})
        try:
            done = subprocess.run(
                command,
                env=environ,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIME_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise NoLink(
                f"the calls between {ranks} processes took longer than {TIME_LIMIT_S:g} s; `retrofit doctor` examines "
                "them, and --link takes a name or numbers"
            ) from error
        if done.returncode or not output.is_file():
            last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
            raise NoLink(f"the link between {ranks} processes cannot be measured (status {done.returncode}): {last}")
        return read_link(output)
