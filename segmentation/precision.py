"""Mixed precision (the type of --amp and the gradient scaler) and deterministic algorithms."""

from __future__ import annotations

import os
from typing import Any

import torch

AMP_DTYPE = {"off": None, "fp16": torch.float16, "bf16": torch.bfloat16}


def full_precision(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor` in float32, or as it is in float64."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def autocast(device: torch.device, amp: str) -> torch.autocast:
    """Return the autocast context of `--amp`. Raises ValueError for fp16 without a GPU."""
    _check(device.type, amp)
    return torch.autocast(device.type, AMP_DTYPE[amp], enabled=amp != "off")


def gradient_scaler(amp: str) -> Any:
    """Return the loss scaler, which is enabled for fp16 only. Raises ValueError for fp16 without a GPU."""
    _check("cuda" if torch.cuda.is_available() else "cpu", amp)
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler(enabled=amp == "fp16")
    return torch.cuda.amp.GradScaler(enabled=amp == "fp16")  # torch < 2.3


def use_deterministic_algorithms() -> None:
    """Let torch use deterministic algorithms only; call it before the first use of a GPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


def _check(device_type: str, amp: str) -> None:
    if amp == "fp16" and device_type != "cuda":
        raise ValueError("--amp fp16 needs a CUDA GPU and none is visible; use --amp bf16 or --amp off")
