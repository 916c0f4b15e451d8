"""Measure the link between ranks: `torchrun ... -m retrofit.plan.link --output link.json`, on all machines at once."""

from __future__ import annotations

import argparse
import os
import sys
from datetime import timedelta
from pathlib import Path


def main() -> int:
    """Measure, and let rank 0 write the file. Collective: every rank."""
    parser = argparse.ArgumentParser(prog="python -m retrofit.plan.link", description=__doc__, allow_abbrev=False)
    parser.add_argument("--output", type=Path, default=Path("link.json"), help="file to write (default: link.json)")
    parser.add_argument("--backend", choices=("auto", "nccl", "gloo"), default="auto", help="default: nccl with GPUs")
    args = parser.parse_args()
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        print(
            "retrofit plan: error: a link has at least 2 ranks; start this by torchrun --nproc_per_node=2",
            file=sys.stderr,
        )
        return 2
    import torch
    import torch.distributed as dist

    from retrofit.plan.link.measure import measured_link

    backend = args.backend if args.backend != "auto" else "nccl" if torch.cuda.is_available() else "gloo"
    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=timedelta(minutes=5))
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    link = measured_link(device)
    if dist.get_rank() == 0:
        link.write(args.output)
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
