"""Mixed precision: the type of --amp and the gradient scaler."""

from __future__ import annotations

from typing import Any

import torch

AMP_DTYPE = {"off": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def autocast(device: torch.device, amp: str) -> torch.autocast:
    """Return the autocast context of `--amp`. Raises ValueError for fp16 without a GPU."""
    if amp == "fp16" and device.type != "cuda":
        raise ValueError("--amp fp16 needs a CUDA GPU and none is visible; use --amp bf16 or --amp off")
    return torch.autocast(device.type, AMP_DTYPE[amp], enabled=amp != "off")


def gradient_scaler(amp: str) -> Any:
    """Return the loss scaler, which does something for fp16 only."""
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler(enabled=amp == "fp16")
    return torch.cuda.amp.GradScaler(enabled=amp == "fp16")  # torch < 2.3
