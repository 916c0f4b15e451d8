"""Write docs/scale.md: the model of `retrofit plan` for 8 to 4,096 GPUs and networks of 7 to 70 billion parameters.

python docs/make_scale.py          write the page
python docs/make_scale.py --check  write nothing; exit status 1 where it is not current
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from retrofit.plan.link.known import link_of, slower
from retrofit.plan.link.link import Link
from retrofit.plan.predict.memory import memory_of
from retrofit.plan.predict.sharded import fsdp_added
from retrofit.plan.profile.profile import Profile
from retrofit.why.analysis.steps import Step

PAGE = Path(__file__).resolve().with_name("scale.md")
GIB = 2**30
GPUS = (8, 16, 64, 256, 1024, 4096)
PER_MACHINE, INSIDE, BETWEEN = 8, "nvlink", "400gbe"
CARDS = (1, 8)  # of a machine
PEAK, USED = 989e12, 0.45  # operations per second of an H100 in bf16, and the share of them that is reached
TOKENS, BYTES = 4096, 2  # of a GPU in a step; of a parameter and of a gradient in bf16
MOMENTS, MASTERS = 8, 4  # bytes per parameter, in float32
STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "fsdp")
TEXT = """\
# From 8 to 4,096 GPUs, on paper

Written by `python docs/make_scale.py`: nothing on this page is measured. It is the model of [`retrofit plan`](plan.md),
with these assumptions:

- Networks: decoders of {networks}. Parameters and gradients in bf16 ({bytes} bytes each), Adam with two moments
  and float32 weights ({moments} and {masters} bytes per parameter).
- A step: {tokens} tokens per GPU, with activations recomputed: 8 operations per parameter and token, at {used:.0%} of
  an H100's {peak:.0f} TFLOP/s. The update of the weights takes no time.
- FSDP (full sharding): each layer is gathered twice and its gradients are reduce-scattered, in one ring through all
  GPUs; the next layer is gathered while one computes.
- Links: {inside} in a machine of {per_machine} GPUs ({inside_rate:.0f} GB/s, {inside_alpha:.0f} us per hop), {between}
  between machines ({between_rate:.0f} GB/s per card, {between_alpha:.0f} us per hop), with one card or one per GPU.
  Calls take 5 % of the computation's speed while they last.
- No rank is late, no link is shared with other jobs, and loading is free.

## Memory of a GPU for parameters, gradients and Adam, without activations (GiB)

{memory}

A GPU of 80 GiB holds what is below 80, less its activations. Gathered layers and DDP's buckets are counted.

## Efficiency of FSDP: computation as a share of the step

{efficiency}

In a ring each hop costs its latency: on {last} GPUs a gather of one layer has {hops} hops. That is why trainings of
this size shard within groups of machines and replicate between them (`HYBRID_SHARD`), and split layers over the GPUs
of a machine.
"""


@dataclass(frozen=True)
class Network:
    name: str
    parameters: float
    layers: int


NETWORKS = (Network("7B", 6.7e9, 32), Network("13B", 13.0e9, 40), Network("70B", 70.0e9, 80))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 where it is not current")
    args = parser.parse_args()
    if args.check:
        return int(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


def page() -> str:
    inside, between = link_of(INSIDE), link_of(BETWEEN)
    networks = ", ".join(f"{one.name} ({one.layers} layers)" for one in NETWORKS)
    return TEXT.format(
        networks=networks, bytes=BYTES, moments=MOMENTS, masters=MASTERS, tokens=TOKENS, used=USED, peak=PEAK / 1e12,
        inside=INSIDE, per_machine=PER_MACHINE, inside_rate=1e-9 / inside.beta, inside_alpha=1e6 * inside.alpha,
        between=BETWEEN,
        between_rate=1e-9 / between.beta, between_alpha=1e6 * between.alpha, memory=memory(), efficiency=efficiency(),
        last=f"{GPUS[-1]:,}", hops=f"{GPUS[-1] - 1:,}",
    )  # fmt: skip


def memory() -> str:
    lines = [row("Network", "Strategy", *(f"{gpus:,}" for gpus in GPUS)), row(*(["---"] * (2 + len(GPUS))))]
    for network in NETWORKS:
        for strategy in STRATEGIES:
            profile = profile_of(network, has_masters=strategy.startswith("zero"))
            sizes = [memory_of(profile, strategy, gpus).states / GIB for gpus in GPUS]
            lines.append(
                row(network.name, strategy, *(f"{size:.1f}" if size < 100 else f"{size:.0f}" for size in sizes))
            )
    return "\n".join(lines)


def efficiency() -> str:
    titles = ("Network", "Cards of a machine", "Step alone", *(f"{gpus:,}" for gpus in GPUS))
    lines = [row(*titles), row(*(["---"] * len(titles)))]
    for network in NETWORKS:
        profile = profile_of(network)
        for cards in CARDS:
            added = [fsdp_added(profile, link(gpus, cards), gpus, is_gathered_again=True) for gpus in GPUS]
            shares = [profile.seconds / (profile.seconds + max(0.0, one)) for one in added]
            alone = f"{profile.seconds:.2f} s"
            lines.append(row(network.name, str(cards), alone, *(f"{share:.0%}" for share in shares)))
    return "\n".join(lines)


def link(gpus: int, cards: int) -> Link:
    """Return the link of a ring through so many GPUs; more cards of a machine carry rings of their own."""
    inside, between = link_of(INSIDE), link_of(BETWEEN)
    if gpus <= PER_MACHINE:
        return inside
    return replace(slower(inside, replace(between, beta=between.beta / cards)), alpha=between.alpha)


def profile_of(network: Network, has_masters: bool = False) -> Profile:
    """Return the profile that one GPU would have if the network fitted it: forward 2 of 8 parts, backward the rest.

    `has_masters`: the strategy adds the float32 weights itself.
    """
    seconds = 8 * network.parameters * TOKENS / (USED * PEAK)
    of_adam = MOMENTS if has_masters else MOMENTS + MASTERS
    step = Step(0.0, seconds, {"forward": seconds / 4, "backward": 3 * seconds / 4}, samples=1.0)
    each = int(network.parameters * BYTES / network.layers)
    facts = {
        "gradients": [each] * network.layers, "elements": [each // BYTES] * network.layers, "frozen_bytes": 0,
        "buffer_bytes": 0, "optimizer_bytes": int(network.parameters * of_adam), "activation_bytes": 0,
        "layers": [[number] for number in range(network.layers)], "batchnorm_channels": [], "optimizers": ["AdamW"],
    }  # fmt: skip
    return Profile([[step]], [(3 * seconds / 4, each)] * network.layers, 1, facts, None)


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
