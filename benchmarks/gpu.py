"""What one GPU can show of this project, in one command and under eight minutes; torch and torchvision suffice.

  python benchmarks/gpu.py                                    everything, into benchmarks/results
  python benchmarks/gpu.py --only fsdp recompute --output figures
  python benchmarks/gpu.py --device cpu --output figures      the code path alone, in tiny sizes

Every part runs in processes of its own, under its own time limit; one that fails is reported and the others continue.
  nccl             a process group of one over NCCL: all_reduce, and what DDP costs there
  gloo_two_ranks   two ranks share the card: their weights against those of one process with the same global batch
  fsdp             FSDP in bf16 against DDP: time and peak memory, one rank
  fsdp_two_ranks   the same on two ranks over gloo; not every torch can do that on a GPU: a failure does not count
  compile          torch.compile on and off
  channels_last    NHWC on and off, with AMP bf16
  recompute        --grad_ckpt on and off: time and peak memory
Writes gpu_<device>.json and gpu_<device>.md. Exit status: 0, 1 if a part failed, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
TWO_RANKS = ("gloo_two_ranks", "fsdp_two_ranks")
MAY_FAIL = ("fsdp_two_ranks",)
CUDA_ONLY = ("nccl",)
LIMIT_S = {"compile": 120.0}
DEFAULT_LIMIT_S = 55.0
CPU_FACTOR = 5.0  # a slow or busy machine must not fail what is not a measurement


def main(argv: list[str] | None = None) -> int:
    import torch
    from gpu_parts import PARTS

    args = get_arguments(list(PARTS), argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        print(
            f"no GPU to measure: torch.cuda.is_available() is False (torch {torch.__version__}, {built}); run it on a "
            "machine with a CUDA GPU, or use --device cpu to try the code path",
            file=sys.stderr,
        )
        return 2
    results = {}
    for part in args.only or PARTS:
        results[part] = run_part(part, args.device)
        print(f"{part}: {results[part]['status']} ({results[part]['seconds']:.0f} s)", flush=True)
    report = {"environment": environment(args.device), "parts": results}
    text = as_markdown(report)
    print(text)
    args.output.mkdir(parents=True, exist_ok=True)
    slug = re.sub(r"[^a-z0-9]+", "_", report["environment"]["device"].lower()).strip("_")
    for ending, content in (("json", json.dumps(report, indent=2) + "\n"), ("md", text)):
        path = args.output / f"gpu_{slug}.{ending}"
        path.write_text(content, encoding="utf-8")
        print(f"wrote {path}")
    return int(any(result["status"] == "failed" for result in results.values()))


def get_arguments(parts: list[str], argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="(default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=parts, metavar="PART", help="parts to run (default: all)")
    parser.add_argument(
        "--output", type=Path, default=HERE / "results", metavar="FOLDER", help="(default: benchmarks/results)"
    )
    return parser.parse_args(argv)


def run_part(part: str, device: str) -> dict[str, Any]:
    """Run a part in processes of its own and return its status, figures or error, and seconds."""
    if part in CUDA_ONLY and device != "cuda":
        return {"status": "not run: needs CUDA", "seconds": 0.0}
    started = time.perf_counter()
    limit_s = LIMIT_S.get(part, DEFAULT_LIMIT_S) * (CPU_FACTOR if device == "cpu" else 1.0)
    with tempfile.TemporaryDirectory() as folder:
        processes = start_ranks(part, device, Path(folder))
        timed_out = wait_for(processes, limit_s)
        outputs = [Path(folder, f"rank_{rank}").read_text(errors="replace") for rank in range(len(processes))]
    result: dict[str, Any] = {"seconds": time.perf_counter() - started}
    statuses = [process.returncode for process in processes]
    figures = [line for line in outputs[0].splitlines() if line.startswith("RESULT ")]
    if not timed_out and not any(statuses) and figures:
        return {"status": "ok", "figures": json.loads(figures[-1][len("RESULT ") :]), **result}
    killed = -signal.SIGKILL  # by this script, after another rank failed
    failed = next((rank for rank, status in enumerate(statuses) if status not in (0, killed)), 0)
    limit = f"over its time limit of {limit_s:.0f} s; " if timed_out else ""
    last = "\n".join(outputs[failed].strip().splitlines()[-12:])
    status = "not supported here" if part in MAY_FAIL else "failed"
    return {"status": status, "error": f"{limit}rank {failed} ended with status {statuses[failed]}:\n{last}", **result}


def start_ranks(part: str, device: str, folder: Path) -> list[subprocess.Popen[bytes]]:
    """Start a part's processes; two ranks look like two machines of one process each, as they share the card."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RETROFIT_")}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        environment.pop(name, None)
    environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    if device == "cpu":
        environment.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    num_ranks = 2 if part in TWO_RANKS else 1
    if num_ranks > 1:
        environment.update(WORLD_SIZE=str(num_ranks), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")
        environment.update(MASTER_PORT=str(free_port()), RETROFIT_DIST_BACKEND="gloo")
    command = [sys.executable, str(HERE / "gpu_parts.py"), part, "--device", device]
    processes = []
    for rank in range(num_ranks):
        place = {"RANK": str(rank)} if num_ranks > 1 else {}
        with open(folder / f"rank_{rank}", "wb") as file:
            process = subprocess.Popen(
                command, env={**environment, **place}, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
        processes.append(process)
    return processes


def wait_for(processes: list[subprocess.Popen[bytes]], limit_s: float) -> bool:
    """Wait until all have ended or one has failed; end the rest, and return whether the time was up."""
    deadline = time.monotonic() + limit_s
    while any(process.poll() is None for process in processes):
        timed_out = time.monotonic() > deadline
        if timed_out or any(process.poll() for process in processes):
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            return timed_out
        time.sleep(0.1)
    return False


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def environment(device: str) -> dict[str, str]:
    """Return what the figures depend on."""
    import torch

    facts = {"python": platform.python_version(), "torch": torch.__version__, "cpus": str(os.cpu_count())}
    if device == "cpu":
        return {"device": "cpu", **facts}
    properties = torch.cuda.get_device_properties(0)
    memory = {"memory, GiB": f"{properties.total_memory / 2**30:.0f}", "driver": driver_version()}
    nccl = ".".join(str(part) for part in torch.cuda.nccl.version())
    return {"device": properties.name, **memory, **facts, "cuda": str(torch.version.cuda), "nccl": nccl}


def driver_version() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.strip().splitlines()[0] if found.strip() else "unknown"


def as_markdown(report: dict[str, Any]) -> str:
    """Return the report as a page: the environment, a table of all figures, and the errors."""
    facts = ", ".join(f"{name} {value}" for name, value in report["environment"].items())
    lines = ["# One GPU", "", f"Written by `python benchmarks/gpu.py`: {facts}.", ""]
    lines += ["Compared variants take turns; a ratio is the median of the rounds' ratios.", ""]
    lines += ["| part | figure | value |", "|---|---|---|"]
    errors = []
    for part, result in report["parts"].items():
        lines += [
            f"| {part} | {name} | {shown(value)} |"
            for name, value in result.get("figures", {"": result["status"]}).items()
        ]
        if "error" in result:
            errors += ["", f"`{part}` {result['status']}:", "", "```", result["error"], "```"]
    return "\n".join(lines + errors) + "\n"


def shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
