"""DistributedDataParallel: its buckets, filled in the order in which gradients are ready, and their all-reduces."""

from __future__ import annotations

from collections.abc import Iterator

from retrofit.plan.link.link import ALL_GATHER, ALL_REDUCE, ALL_REDUCE_16, BROADCAST, Link
from retrofit.plan.profile.profile import Profile

from .overlap import with_calls

MIB = 2**20
FIRST_BUCKET, BUCKET = MIB, 25 * MIB  # bytes; DDP's own


def added(profile: Profile, link: Link, ranks: int, in_16_bits: bool = False) -> float:
    """Return what DDP adds to a step, in seconds."""
    copies, whole = link.copies, profile.gradient_bytes
    last = profile.backward / profile.backwards
    work = last + whole * copies.into_bucket
    call, share = (ALL_REDUCE_16, 0.5) if in_16_bits else (ALL_REDUCE, 1.0)
    if in_16_bits:
        work += whole * copies.to_16_bits
    scale = work / last if last else 0.0
    calls = [(min(work, at * scale), link.seconds(call, size * share, ranks)) for at, size in buckets(profile)]
    after = whole * (copies.out_of_bucket + (copies.from_16_bits if in_16_bits else 0.0))
    return with_calls(work, calls, link.overlap) + after - last + _around(link, whole)


def _around(link: Link, num_bytes: float) -> float:
    """Return what was measured of DDP beyond its calls and copies: torch's own work, in each step."""
    copies = link.copies.into_bucket + link.copies.out_of_bucket
    calls = link.seconds(ALL_REDUCE, num_bytes, link.measured_ranks)
    return max(0.0, link.measured.of("ddp", num_bytes) - calls - num_bytes * copies)


def buckets(profile: Profile) -> Iterator[tuple[float, int]]:
    """Yield when each bucket is full, in seconds after the backward pass began, and its bytes.

    Gradients that no backward pass has made (those of torch.autograd.grad) are taken as one bucket at its end.
    """
    if not profile.ready:
        yield profile.backward / profile.backwards, profile.gradient_bytes
        return
    limit, size, at = FIRST_BUCKET, 0, 0.0
    for at, num_bytes in profile.ready:
        size += num_bytes
        if size >= limit:
            yield at, size
            limit, size = BUCKET, 0
    if size:
        yield at, size


def of_buffers(profile: Profile, link: Link, ranks: int) -> float:
    """Return the seconds in which rank 0's buffers are sent to the others, in each forward pass."""
    size = profile.facts["buffer_bytes"]
    return profile.backwards * link.seconds(BROADCAST, size, ranks) if size else 0.0


def of_batchnorm(profile: Profile, link: Link, ranks: int) -> float:
    """Return the seconds in which BatchNorm layers exchange their statistics: a call in each direction."""
    return profile.backwards * sum(
        link.seconds(ALL_GATHER, 4 * (2 * channels + 1) * ranks, ranks) + link.seconds(ALL_REDUCE, 8 * channels, ranks)
        for channels in profile.facts["batchnorm_channels"]
    )
