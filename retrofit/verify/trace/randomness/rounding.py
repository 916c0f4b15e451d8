"""Random rounding: what one process computes, with an error in each result as large as rounding makes it.

Monte Carlo arithmetic (Parker 1997), by operator: runs that differ in nothing else show how far rounding alone takes a
training apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Run = Callable[[tuple, dict], Any]

# Products and sums, whose order is another one on several processes. What else there is rounds each element by itself.
_ROUNDED = {
    *("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::convolution", "aten::convolution_backward"),
    *("aten::sum", "aten::mean", "aten::nll_loss_forward", "aten::embedding_dense_backward"),
    *("aten::native_layer_norm", "aten::native_layer_norm_backward"),
    *("aten::native_batch_norm", "aten::native_batch_norm_backward"),
}


class RandomRounding:
    """Adds errors to results, drawn from a generator of its own. Without a seed it changes nothing."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def rounded(self, func: Any, run: Run) -> Run:
        """Return how to run an operator with an error in its result; `run` itself where nothing is to be done."""
        if not self._seed or func._schema.name not in _ROUNDED:
            return run

        def rounded(args: tuple, kwargs: dict) -> Any:
            result = run(args, kwargs)
            self.disturb(result, None)
            return result

        return rounded

    def disturb(self, values: Any, precision: torch.dtype | None) -> None:
        """Change each number by up to half a unit in its last place, or in that of `precision`, in place.

        Half of that is in proportion to the number and half to the tensor's root mean square: sums may cancel out.
        """
        for value in values if isinstance(values, (list, tuple)) else [values]:
            if not self._seed or not isinstance(value, torch.Tensor) or not value.is_floating_point():
                continue
            if not value.numel() or value.layout is not torch.strided:
                continue
            unit = torch.finfo(precision or value.dtype).eps
            with torch.no_grad():
                exact = value.double()
                scale = exact.abs() + exact.square().mean().sqrt()
                noise = torch.rand(value.shape, generator=self._generator(value.device), device=value.device).double()
                value.copy_(exact + (noise - 0.5) * (unit / 2) * scale)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]
