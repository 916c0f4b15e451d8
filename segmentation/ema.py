"""An exponential moving average of a model's weights, for evaluation."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class ModelEMA(AveragedModel):
    """`decay * average + (1 - decay) * weights` after every step; buffers are copied. Its state is a plain model's.

    `average` is the model that holds the average, for a `model` that cannot be copied: another instance of it.
    """

    def __init__(self, model: nn.Module, decay: float, average: nn.Module | None = None) -> None:
        super().__init__(nn.Module() if average is not None else model, multi_avg_fn=get_ema_multi_avg_fn(decay))
        if average is not None:
            self.module = average
            average.load_state_dict(model.state_dict())

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        self.n_averaged.fill_(1)  # with 0 the first update would overwrite the average
        return self.module.load_state_dict(state_dict, *args, **kwargs)
