"""A small recurrent language model."""

from torch import nn


class GRUModel(nn.Module):
    """Predicts the next of `num_tokens` tokens at every place of (N, T) int64; returns logits (N, T, num_tokens)."""

    def __init__(self, num_tokens, width=32):
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(width, num_tokens)

    def forward(self, tokens):
        hidden, _ = self.gru(self.embedding(tokens))
        return self.head(self.dropout(hidden))


def lr_factor(step, total_steps, warmup_steps=4):
    """Return the factor on the learning rate: linear warm-up, then linear decay to 0."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))
