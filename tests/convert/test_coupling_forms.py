"""Forms in which the samples of a batch are compared or mixed, and those that look like it."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import torch
from torch import nn
import torch.nn.functional as F
from einops import rearrange
from torch.utils.data import DataLoader, TensorDataset


def compared(x, y):
    z = torch.cat([x, y], 0)
    return F.cosine_similarity(z.unsqueeze(1), z.unsqueeze(0), dim=-1).exp().mean()


def over_time(x, y):
    z = torch.cat([x, y], dim=0).transpose(0, 1)
    return torch.matmul(z, z.transpose(1, 2)).softmax(-1)[:, 0, 1].mean()


def pooled(x, y):
    loss = 0.0
    while x.size(1) > 1:
        loss = loss + over_time(x, y)
        x = F.max_pool1d(x.transpose(1, 2), kernel_size=2).transpose(1, 2)
        y = F.max_pool1d(y.transpose(1, 2), kernel_size=2).transpose(1, 2)
    return loss


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.table = nn.Linear(4, 4), nn.Embedding(6, 4)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x):
        FORWARD


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(16, 4, 4)), batch_size=4, shuffle=True)
for epoch in range(2):
    for (x,) in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = LOSS
        loss.backward()
        optimizer.step()
"""
PLAIN = "return self.layer(x)"
COUPLED = {
    "a function in the model": ("return compared(self.layer(x)[:, 0], self.layer(x)[:, 1])", "out"),
    "distances in the model": ("z = self.layer(x)[:, 0]; return (z.unsqueeze(1) - z.unsqueeze(0)).pow(2).sum()", "out"),
    "one sequence": ('y = rearrange(x, "b n d -> 1 b (n d)"); return self.attend(y, y, y)[0]', "out.mean()"),
    "one sequence and a name": ('y = rearrange(self.layer(x), "s c d -> 1 s (c d)"); return y', "out.mean()"),
    "another axis, after pooling": (PLAIN, "pooled(out[:, -3:], out[:, :3])"),
    "another axis": (PLAIN, "over_time(out[:, 1:], out[:, :-1])"),
}
OF_SAMPLES = {
    "heads": ('y = rearrange(x, "b n (h d) -> b h n d", h=2); return y.flatten(1)', "out.mean()"),
    "the first state": ('y = rearrange(x[:, 0], "b d -> 1 b d"); return self.layer(y)', "out.mean()"),
    "time first": ('y = rearrange(x, "b n d -> n b d"); return self.layer(y)', "out.mean()"),
    "rows of a table": (
        "w = self.table(torch.arange(6)).detach().view(6, -1); return self.layer(x) * torch.matmul(w, w.T).mean()",
        "out.mean()",
    ),
    "matrices of one sample": (
        "y = self.layer(x); found = []\n        for i in range(x.size(0)):\n"
        "            u, s, v = torch.svd(y[i])\n            found.append(torch.matmul(v, u.transpose(1, 0)))\n"
        "        return torch.stack(found)",
        "out.mean()",
    ),
}
RELATIVE = {
    "activation": "nn.ReLU()(1 + out - torch.mean(out)).mean()",
    "criterion": "nn.BCEWithLogitsLoss()(out - out.mean(), torch.ones_like(out))",
    "function": "F.binary_cross_entropy_with_logits(out - out.mean(0, keepdim=True), torch.ones_like(out))",
    "named": "nn.Softplus()(torch.mean(out) - out).mean()",
    "method": "(1 - (out - out.mean())).clamp(min=0).mean()",
    "square": "((out - out.mean() - 1) ** 2).mean()",
}


def outcome(folder: Path, forward: str, loss: str) -> str:
    """Return the reasons of a refusal, and the converted script."""
    result = conversion(folder, SCRIPT.replace("FORWARD", forward).replace("LOSS", loss))
    return "\n".join(
        [*map(str, result.refusals), *(file.text for file in result.files if file.path.name == "train.py")]
    )


@pytest.mark.parametrize("form", COUPLED)
def test_samples_that_are_compared_are_gathered_or_refused(tmp_path: Path, form: str) -> None:
    assert "RF303" in (text := outcome(tmp_path, *COUPLED[form])) or "batch_rows" in text or "one_process" in text


@pytest.mark.parametrize("form", OF_SAMPLES)
def test_what_is_of_each_sample_or_of_none_is_left(tmp_path: Path, form: str) -> None:
    text = outcome(tmp_path, *OF_SAMPLES[form])
    assert "rd.distribute_model" in text
    assert "batch_rows" not in text and "one_process" not in text


@pytest.mark.parametrize("form", RELATIVE)
def test_a_mean_of_the_batch_inside_a_loss_is_that_of_all_ranks(tmp_path: Path, form: str) -> None:
    assert "rd.loss.batch_mean(" in outcome(tmp_path, PLAIN, RELATIVE[form])


HIDDEN = {  # reductions over the samples under other names
    "reduce of einops": ("einops.reduce(out[:, 0], 'b c -> c', 'mean').pow(2).sum()", "rd.loss.batch_mean(einops"),
    "an extreme of einops": ("einops.reduce(out[:, 0], 'b c -> c', 'max').sum()", "rd.loss.batch_rows("),
    "a sum of einops": ("einops.reduce(out.pow(2), 'b t c -> ', 'sum')", "rd.loss.sum_loss("),
    "einsum of einops": ("einops.einsum(out[:, 0], out[:, 0], 'b i, b j -> i j').pow(2).sum()", "rd.loss.batch_sum("),
    "pairs of einops": ("einops.einsum(out[:, 0], out[:, 0], 'i d, j d -> i j').exp().mean()", "rd.loss.batch_rows("),
    "a product of vectors": ("torch.dot(out.view(-1), out.view(-1)).sqrt()", "rd.loss.batch_sum(torch.dot"),
    "a norm across the samples": ("F.layer_norm(out[:, 0].t(), (len(out),)).exp().mean()", "rd.loss.batch_rows("),
    "instances of a turned batch": ("F.instance_norm(out[:, 0].t()[None]).exp().mean()", "rd.loss.batch_rows("),
    "new axes by None": ("(out[:, 0, :1] - out[:, 0, 0][None]).exp().mean()", "rd.loss.batch_rows("),
    "a mean of numpy": ("out.mean() * float(np.mean(x.numpy() > 1))", "rd.reduce_loss(np.mean(x.numpy() > 1))"),
}


@pytest.mark.parametrize("form", HIDDEN)
def test_a_reduction_under_another_name_is_that_of_all_ranks(tmp_path: Path, form: str) -> None:
    loss, edit = HIDDEN[form]
    script = SCRIPT.replace("FORWARD", PLAIN).replace("LOSS", loss)
    result = conversion(tmp_path, script.replace("from einops", "import einops\nimport numpy as np\nfrom einops"))
    assert not result.refusals
    assert edit in "\n".join(file.text for file in result.files)


ROWWISE = [
    "einops.reduce(out[:, 0], 'b c -> b', 'max').mean()",
    "einops.einsum(out[:, 0], out[:, 1], 'b i, b i -> b').mean()",
    "F.layer_norm(out, (4,)).exp().mean()",
    "F.instance_norm(out).exp().mean()",
    "(out[:, :1] - out[:, 1:]).exp().mean()",
    "(out[:, 0][:, None] - out[:, 1][:, None]).exp().mean()",
]


@pytest.mark.parametrize("loss", ROWWISE)
def test_what_looks_like_one_and_is_of_each_sample_is_left(tmp_path: Path, loss: str) -> None:
    script = SCRIPT.replace("FORWARD", PLAIN).replace("LOSS", loss)
    result = conversion(tmp_path, script.replace("from einops", "import einops\nfrom einops"))
    assert not result.refusals
    assert not any("rd.loss." in file.text for file in result.files)
