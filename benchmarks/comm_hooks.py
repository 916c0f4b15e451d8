"""What --comm_hook costs and saves: time per step of DDP over a network of 100 Mbit/s, 1 Gbit/s and without a limit.

  python benchmarks/comm_hooks.py                                      a few minutes, as root
  python benchmarks/comm_hooks.py --mbit_per_s 10000 --rounds 10       another network
  python benchmarks/comm_hooks.py --output docs/comm_hooks.md          the table as a document

Two hosts (network namespaces with a pair of interfaces between them, see tests/two_hosts.py) run one process each,
over gloo; each process holds one model per hook, all from the same weights. In every round each network is set up in
turn, and each hook trains `--steps` steps over it, so that a noisy machine disturbs all equally. A step takes as long
as the slower host; ratios against plain DDP are formed round by round. The k-th step of every hook has the same
batch. PowerSGD's first, plain steps come before the rounds. Bytes are what host 0 sent, headers included.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "tests")]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torchvision  # noqa: E402
from rounds import command, environment, markdown_table, median_and_range, text_table  # noqa: E402
from two_hosts import TwoHosts, two_hosts, why_not  # noqa: E402

import retrofit.distributed as rd  # noqa: E402
from retrofit.distributed.strategies.comm_hooks import COMM_HOOKS, POWERSGD_RANK, POWERSGD_START, register_comm_hook  # noqa: E402

WARM_UP = POWERSGD_START + 2  # plain steps, then the first two with PowerSGD
PAGE = """\
# What `--comm_hook` costs and saves

DDP's time per step by how its gradients travel, over two hosts on one machine (network namespaces, gloo) whose network
lets no more than so much through, without a delay of its own. Written by

    {command}

{setting}.

{times}
*of plain DDP* is the ratio to `--comm_hook none` in the same round; both columns are medians of {rounds} rounds, with
the smallest and the largest.

{bytes}
A host sends each gradient once per step when two average it. The measured bytes hold the headers of TCP and IP as
well, the small extra sums of DDP, and the acknowledgements of what the other host sends. The loss is the mean
of steps {first} to {last} on made-up images, the same batches for every hook: one run, and so a sign of harm rather
than a measure of it.

{reading}"""


class Host:
    """A process on one of the hosts, which takes commands and answers each with a line of JSON."""

    def __init__(self, hosts: TwoHosts, number: int, args: argparse.Namespace) -> None:
        place = {"RANK": str(number), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "RETROFIT_DISTRIBUTED": "1"}
        place.update(MASTER_ADDR=hosts.addresses[0], MASTER_PORT="29500", GLOO_SOCKET_IFNAME=hosts.interfaces[number])
        environ = {**os.environ, **place, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        options = [f"--model={args.model}", f"--image_size={args.image_size}", f"--batchsize={args.batchsize}"]
        arguments = [sys.executable, __file__, *options, "--hooks", *args.hooks]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process, self._number = hosts.popen(number, arguments, env=environ, **pipes), number

    def send(self, *words: Any) -> None:
        assert self._process.stdin is not None
        print(*words, file=self._process.stdin, flush=True)

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process on host {self._number} ended early; its error is above")
        return json.loads(line)


def main() -> int:
    args = get_arguments()
    if "RANK" in os.environ:
        return serve(args)
    reason = why_not()
    if reason is not None:
        print(f"no two hosts here: {reason}; nothing was measured", file=sys.stderr)
        return 2
    facts, results = measure(args)
    times, sizes = time_rows(args, results), byte_rows(args, facts, results)
    lines = reading(args, facts, results)
    print(f"{environment()}; {setting_of(args, facts)}", "", text_table(*times), "", text_table(*sizes), "", sep="\n")
    print(*lines, sep="\n")
    if args.output:
        args.output.write_text(page(args, facts, times, sizes, lines), encoding="utf-8")
        print(f"wrote {args.output}", file=sys.stderr)
    return 0


def get_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    rate = "networks: 10^6 bits per second that leave each host; 0 = no limit (default: 100 1000 0)"
    add("--mbit_per_s", type=float, nargs="+", default=[100, 1000, 0], metavar="N", help=rate)
    add("--hooks", nargs="+", choices=COMM_HOOKS, default=list(COMM_HOOKS), help="with none among them (default: all)")
    add("--model", default="resnet18", help="of torchvision.models, a classifier (default: %(default)s)")
    add("--image_size", type=int, default=32, help="image side, pixels (default: %(default)s)")
    add("--batchsize", type=int, default=8, help="images per process and step (default: %(default)s)")
    add("--steps", type=int, default=2, help="steps per hook, network and round (default: %(default)s)")
    add("--rounds", type=int, default=5, help="rounds, after one warm-up (default: %(default)s)")
    add("--output", type=Path, metavar="FILE", help="write the tables there as Markdown (default: no)")
    args = parser.parse_args()
    if "none" not in args.hooks:
        parser.error(f"--hooks {' '.join(args.hooks)} lacks none, plain DDP, to which the others are compared; add it")
    return args


# ---- on the hosts ------------------------------------------------------------------------------------------


def serve(args: argparse.Namespace) -> int:
    """Train the steps that standard input asks for, "hook steps" by line, and answer with what they took."""
    torch.set_num_threads(1)
    rd.setup_distributed()
    trainings = {hook: Training(args, hook) for hook in args.hooks}
    print(json.dumps(trainings["none"].facts()), flush=True)
    for line in sys.stdin:
        hook, steps = line.split()
        print(json.dumps(trainings[hook].train(int(steps))), flush=True)
    rd.cleanup_distributed()
    return 0


class Training:
    """A model under DDP whose gradients travel as `hook` says, and its optimizer."""

    def __init__(self, args: argparse.Namespace, hook: str) -> None:
        torch.manual_seed(0)
        self._model = rd.strategies.select.wrap_model(torchvision.models.get_model(args.model, weights=None), "ddp")
        register_comm_hook(self._model, hook)
        self._optimizer = torch.optim.SGD(self._model.parameters(), 0.002, momentum=0.9)
        self._patterns = torch.randn(10, 3, args.image_size, args.image_size)  # one per class
        self._batchsize, self._step = args.batchsize, 0
        interface = os.environ["GLOO_SOCKET_IFNAME"]
        self._sent = Path("/sys/class/net", interface, "statistics", "tx_bytes")  # of this namespace alone

    def train(self, steps: int) -> dict[str, Any]:
        """Return the seconds and the sent bytes of `steps` steps, and each one's loss."""
        dist.barrier()
        sent, started = int(self._sent.read_text()), time.perf_counter()
        losses = [self._train_step() for _ in range(steps)]
        taken = time.perf_counter() - started
        return {"seconds": taken, "bytes": int(self._sent.read_text()) - sent, "losses": losses}

    def _train_step(self) -> float:
        self._step += 1
        torch.manual_seed(2 * self._step + dist.get_rank())  # of the batch, and of dropout
        labels = torch.randint(10, (self._batchsize,))
        images = self._patterns[labels] + torch.randn(self._batchsize, *self._patterns.shape[1:])
        self._optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(self._model(images), labels)
        loss.backward()
        self._optimizer.step()
        return loss.item()

    def facts(self) -> dict[str, Any]:
        """Return the number of parameters and, hook by hook, the bytes of their gradients as sent in theory."""
        shapes = [tuple(parameter.shape) for parameter in self._model.parameters()]
        numbers = [parameter.numel() for parameter in self._model.parameters()]
        total, thin = sum(numbers), sum(map(_powersgd_numbers, shapes, numbers))
        theory = {"none": 4 * total, "fp16": 2 * total, "bf16": 2 * total, "powersgd": 4 * thin}
        return {"parameters": total, "theory": theory}


def _powersgd_numbers(shape: Sequence[int], number: int) -> int:
    """Return the numbers sent for one gradient: r(m + n) for a matrix of m x n, unless that is not even half of it."""
    if len(shape) < 2:
        return number
    m, n = shape[0], number // shape[0]
    r = min(m, n, POWERSGD_RANK)
    return r * (m + n) if 2 * r * (m + n) < m * n else number


# ---- here --------------------------------------------------------------------------------------------------


def measure(args: argparse.Namespace) -> tuple[dict[str, Any], dict[tuple[float, str], list[dict[str, Any]]]]:
    """Return the facts of the model, and by network and hook what each round gave."""
    with two_hosts() as hosts:
        processes = [Host(hosts, number, args) for number in (0, 1)]
        facts, _ = (process.answer() for process in processes)
        for hook in args.hooks:
            print(f"{hook}: {WARM_UP} steps before the rounds", file=sys.stderr)
            train(processes, hook, WARM_UP)
        results: dict[tuple[float, str], list[dict[str, Any]]] = {}
        for number in range(args.rounds + 1):
            print(f"round {number} of {args.rounds}{'' if number else ' (warm-up)'}", file=sys.stderr)
            for rate in args.mbit_per_s:
                hosts.slow_down(rate) if rate else hosts.full_speed()
                for hook in args.hooks:
                    results.setdefault((rate, hook), []).append(train(processes, hook, args.steps))
    return facts, results


def train(processes: list[Host], hook: str, steps: int) -> dict[str, Any]:
    """Train on both hosts; return seconds per step of the slower, the first's bytes per step and the mean losses."""
    for process in processes:
        process.send(hook, steps)
    one, other = (process.answer() for process in processes)
    losses = [(a + b) / 2 for a, b in zip(one["losses"], other["losses"])]
    return {"seconds": max(one["seconds"], other["seconds"]) / steps, "bytes": one["bytes"] / steps, "losses": losses}


def setting_of(args: argparse.Namespace, facts: dict[str, Any]) -> str:
    return (
        f"{args.model} of torchvision, {facts['parameters'] / 1e6:.1f} M parameters, images {args.image_size}x"
        f"{args.image_size}, batch {args.batchsize} per process, PowerSGD of rank {POWERSGD_RANK}, steps per "
        f"round: {args.steps}"
    )


def name_of(rate: float) -> str:
    return "no limit" if not rate else f"{rate / 1000:g} Gbit/s" if rate >= 1000 else f"{rate:g} Mbit/s"


def ratios(results: Any, rate: float, hook: str) -> list[float]:
    """Return the times over plain DDP's, round by round, without the warm-up."""
    pairs = zip(results[rate, hook][1:], results[rate, "none"][1:])
    return [ours["seconds"] / plain["seconds"] for ours, plain in pairs]


def time_rows(args: argparse.Namespace, results: Any) -> tuple[list[str], list[list[str]]]:
    rows = []
    for rate in args.mbit_per_s:
        for hook in args.hooks:
            ms = [1000 * found["seconds"] for found in results[rate, hook][1:]]
            rows.append([name_of(rate), hook, median_and_range(ms, 0), median_and_range(ratios(results, rate, hook))])
    return ["network", "comm_hook", "ms per step", "of plain DDP"], rows


def byte_rows(args: argparse.Namespace, facts: Any, results: Any) -> tuple[list[str], list[list[str]]]:
    rows = []
    for hook in args.hooks:
        found = [result for rate in args.mbit_per_s for result in results[rate, hook][1:]]
        sent, theory = statistics.median(result["bytes"] for result in found), facts["theory"][hook]
        share = f"{theory / facts['theory']['none']:.4f}"
        loss = statistics.mean(loss for result in found for loss in result["losses"])
        rows.append([hook, f"{theory / 1e6:.2f}", share, f"{sent / 1e6:.2f}", f"{loss:.3f}"])
    return ["comm_hook", "MB per step in theory", "of plain DDP", "MB per step measured", "loss"], rows


def reading(args: argparse.Namespace, facts: Any, results: Any) -> list[str]:
    """Return in words when which hook pays, from the figures."""
    lines, others = [], [hook for hook in args.hooks if hook != "none"]
    for rate in args.mbit_per_s:
        times = {hook: statistics.median(ratios(results, rate, hook)) for hook in args.hooks}
        best = min(times, key=times.__getitem__)
        shown = "plain DDP" if best == "none" else f"`{best}`, {times[best]:.2f} of plain DDP's time"
        lines.append(f"- Fastest, {name_of(rate)}: {shown}.")
    if 0 in args.mbit_per_s:
        lines += [f"- `{hook}` saves {break_even(facts, results, hook)}" for hook in others]
    return lines


def break_even(facts: Any, results: Any, hook: str) -> str:
    """Return in words what a hook saves and takes, and up to which rate of a network the one outweighs the other."""
    pairs = zip(results[0, hook][1:], results[0, "none"][1:])
    extra = statistics.median(ours["seconds"] - plain["seconds"] for ours, plain in pairs)
    saved = facts["theory"]["none"] - facts["theory"][hook]
    if extra <= 0:
        return f"{saved / 1e6:.1f} MB a step and is not slower even with no limit, where bytes cost copying alone."
    return (
        f"{saved / 1e6:.1f} MB a step and takes {1000 * extra:.0f} ms more with no limit: it pays on a network of less "
        f"than about {saved * 8 / extra / 1e9:.1f} Gbit/s (bytes saved over time added; less where backward hides the "
        "transfer)."
    )


def page(args: argparse.Namespace, facts: Any, times: Any, sizes: Any, lines: list[str]) -> str:
    steps = len(args.mbit_per_s) * args.steps
    return PAGE.format(
        command=command(),
        setting=f"{environment()}; {setting_of(args, facts)}",
        times=markdown_table(*times),
        rounds=args.rounds,
        bytes=markdown_table(*sizes),
        first=WARM_UP + steps + 1,
        last=WARM_UP + steps + args.rounds * steps,
        reading="\n".join(lines) + "\n",
    )


if __name__ == "__main__":
    sys.exit(main())
