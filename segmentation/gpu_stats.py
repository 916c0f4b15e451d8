"""Utilisation and memory of this machine's GPUs, read through gpustat."""

from __future__ import annotations


def gpu_scalars() -> dict[str, float]:
    """Return `gpu<i>/utilisation_percent` and `gpu<i>/memory_mib` of every GPU that reports them; else empty."""
    import gpustat

    try:
        query = gpustat.new_query()
    except Exception:  # no NVIDIA driver: NVML has several errors for that
        return {}
    scalars: dict[str, float] = {}
    for gpu in query.gpus:
        for name, value in (("utilisation_percent", gpu.utilization), ("memory_mib", gpu.memory_used)):
            if value is not None:  # some GPUs do not report it, which is not zero
                scalars[f"gpu{gpu.index}/{name}"] = float(value)
    return scalars
