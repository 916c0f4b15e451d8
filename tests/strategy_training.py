"""Train a small transformer under a strategy inside a test's ranks, always on the same global batches."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from torch import nn

import retrofit.distributed as rd

GLOBAL_BATCH, NUM_WORDS, NUM_CLASSES = 12, 5, 7


class Block(nn.Module):
    """Attention and an MLP, each with a residual; the layer class to wrap."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norms[1](x))


class Transformer(nn.Module):
    """Two blocks between a tied embedding: its weight is the classifier's, too."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_CLASSES, width)
        self.blocks = nn.ModuleList([Block(width), Block(width)])
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, NUM_CLASSES, bias=False)
        self.classifier.weight = self.embedding.weight
        self.num_classes = NUM_CLASSES

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return self.classifier(self.norm(x)).float()


def new_model() -> Transformer:
    torch.manual_seed(0)
    return Transformer()


def batch_of(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return words and labels (GLOBAL_BATCH, NUM_WORDS) of a step; label -100 does not count, unevenly over samples."""
    generator = torch.Generator().manual_seed(step)
    words = torch.randint(0, NUM_CLASSES, (GLOBAL_BATCH, NUM_WORDS), generator=generator)
    labels = torch.randint(0, NUM_CLASSES, (GLOBAL_BATCH, NUM_WORDS), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < 0.3] = -100
    return words, labels


def with_options(**options: Any) -> Any:
    """Return a context in which the runtime has these options, as if setup_distributed had been given them."""
    return mock.patch.dict(rd.options._values, options)


def train(
    steps: int,
    precision: str = "fp32",
    accum_steps: int = 1,
    clip_grad: float = 1.0,
    load: str = "",
    save: str = "",
    **options: Any,
) -> dict[str, Any]:
    """Train on this rank's share of the batches and return the losses and the whole weights; a task.

    `load` is a checkpoint to go on from, `save` where to leave one at the end.
    """
    strategy = options.get("strategy", "auto")
    if strategy == "fsdp" and precision == "bf16":
        options["param_dtype"] = "bf16"
    with with_options(min_num_params=1000.0, **options):
        model = rd.strategies.select.wrap_model(new_model())
        # Not AdamW, which makes whole steps of the rounding errors of gradients that are 0 (of the keys' bias).
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if strategy == "deepspeed":
            micro_batch = GLOBAL_BATCH // rd.get_world_size() // accum_steps
            sizes = {"micro_batch": micro_batch, "accum_steps": accum_steps}
            amp = "bf16" if precision == "bf16" else "off"
            optimizer = rd.strategies.wrap_optimizer(model, optimizer, **sizes, amp=amp, clip_grad=clip_grad)
    first = rd.load_checkpoint(model, optimizer, load)["epoch"] if load else 0
    losses = [
        train_step(model, optimizer, step, precision, accum_steps, clip_grad, strategy)
        for step in range(first, first + steps)
    ]
    if save:
        rd.save_checkpoint(model, optimizer, first + steps, save)
    weights = model.state_dict() if isinstance(model, rd.strategies.ZeroModel) else rd.unwrap_model(model).state_dict()
    return {"losses": losses, "weights": rd.checkpoint.gather_state(weights)}


def train_step(
    model: Any, optimizer: Any, step: int, precision: str, accum_steps: int, clip_grad: float, strategy: str
) -> float:
    words, labels = batch_of(step)
    own = slice(rd.get_rank(), None, rd.get_world_size())
    parts = list(zip(words[own].chunk(accum_steps), labels[own].chunk(accum_steps)))
    valid = rd.loss.batch_count(int((labels[own] != -100).sum()))
    share = 0.0
    casts = precision == "bf16" and strategy != "fsdp"  # there the parameters themselves are gathered in bf16
    for number, (inputs, targets) in enumerate(parts, start=1):
        with rd.strategies.gradient_sync(model, enabled=number == accum_steps):
            with torch.autocast("cpu", torch.bfloat16, enabled=casts):
                logits = model(inputs)
            total = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
            loss = total / rd.loss.rank_share(valid)
            rd.strategies.backward(model, loss)
        share += loss.item() / rd.get_world_size()
    rd.strategies.clip_grad_norm(model, clip_grad)
    optimizer.step()
    optimizer.zero_grad()
    return rd.sum_over_ranks(share)
