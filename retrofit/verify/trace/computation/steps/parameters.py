"""The parameters of an optimizer, and what is recorded of them and of their gradients."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch

from retrofit.verify.trace.computation.fingerprint import bit_hashes, joint_hash, norm_and_projection, whole
from retrofit.verify.trace.events import Fingerprint

from .zero import whole_gradient, whole_weight


def given_parameters(optimizer: Any) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def gpu_of(parameters: list[torch.Tensor]) -> str | None:
    """Return the GPU of the first parameter, by a name that is the same in all processes of the machine."""
    if not parameters or parameters[0].device.type != "cuda":
        return None
    device = parameters[0].device
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)  # since torch 2.4
    return (
        f"GPU {uuid}" if uuid else f"{device} of CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'all')}"
    )


def of_gradient(parameter: torch.Tensor) -> Fingerprint | None:
    gradient = whole_gradient(parameter) if parameter.grad is None else whole(parameter.grad)
    if gradient is None:
        return None
    return norm_and_projection(gradient.to_dense() if gradient.is_sparse else gradient)


def norms(parameters: list[torch.Tensor]) -> list[float]:
    """Return the norm of each parameter that is not sharded: it is cheap, and tells whether one changes."""
    own = [one for one in parameters if one.is_floating_point() and not hasattr(one, "full_tensor")]
    return [float(norm) for norm in torch._foreach_norm(own)] if own else []


def of_parameters(parameters: list[torch.Tensor]) -> tuple[list[Fingerprint], str, list[str]]:
    """Return the fingerprint of each, the hash of all, and the hash of each."""
    parameters = [whole_weight(whole(parameter)) for parameter in parameters]
    hashes = bit_hashes(parameters)
    return [norm_and_projection(parameter) for parameter in parameters], joint_hash(hashes), hashes
