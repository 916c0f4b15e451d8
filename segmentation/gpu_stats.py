"""Utilisation and memory of this machine's GPUs, read through gpustat."""

from __future__ import annotations


def gpu_scalars() -> dict[str, float]:
    """Return `gpu<i>/utilisation_percent` and `gpu<i>/memory_mib` for every GPU; empty where there is none."""
    import gpustat

    try:
        query = gpustat.new_query()
    except Exception:  # no NVIDIA driver: NVML has several errors for that
        return {}
    scalars: dict[str, float] = {}
    for gpu in query.gpus:
        scalars[f"gpu{gpu.index}/utilisation_percent"] = float(gpu.utilization or 0)
        scalars[f"gpu{gpu.index}/memory_mib"] = float(gpu.memory_used or 0)
    return scalars
