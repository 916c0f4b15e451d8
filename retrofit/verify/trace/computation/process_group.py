"""The process group that the script joins, and the port at which its ranks meet."""

from __future__ import annotations

import functools
import os
import re
import sys
from typing import Any

import torch.distributed as dist

from retrofit.verify.trace.events import GroupJoin, Record


def install_groups(record: Record) -> None:
    """Record the first `init_process_group` of the process, with the port it meets at and the launcher's port."""
    launcher_port = os.environ.get("MASTER_PORT")
    join = dist.init_process_group

    @functools.wraps(join)
    def traced(*args: Any, **kwargs: Any) -> None:
        method = kwargs.get("init_method") or (args[1] if len(args) > 1 else None) or "env://"
        port = re.search(r"tcp://[^/]*:(\d+)", str(method))
        master_port = port.group(1) if port else os.environ.get("MASTER_PORT")
        try:
            join(*args, **kwargs)
        finally:
            is_joined = dist.is_initialized()
            record(
                GroupJoin(
                    backend=dist.get_backend() if is_joined else None,
                    world_size=dist.get_world_size() if is_joined else None,
                    rank=dist.get_rank() if is_joined else None,
                    master_port=master_port,
                    launcher_port=launcher_port,
                )
            )

    for name, module in list(sys.modules.items()):  # others of torch have it by name, such as that of device meshes
        if name.startswith("torch.") and vars(module).get("init_process_group") is join:
            module.init_process_group = traced  # type: ignore[attr-defined]
