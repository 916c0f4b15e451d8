"""A language model of a library gives the mean over its labels that are not -100: each rank's has to get its weight."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import torch
from peft import LoraConfig, get_peft_model
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, GPT2LMHeadModel


class Own(GPT2LMHeadModel):
    pass


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = AutoModelForCausalLM.from_pretrained("small")

    def forward(self, ids, labels):
        return self.inner(ids, labels=labels).loss


ids = torch.randint(0, 50, (64, 12))
loader = DataLoader(TensorDataset(ids, ids.masked_fill(ids < 10, -100)), batch_size=8)
model = MODEL
optimizer = optim.AdamW(model.parameters(), lr=0.1)
for ids, labels in loader:
    batch = {"input_ids": ids, "labels": labels}
    loss = LOSS
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
CAUSAL = 'AutoModelForCausalLM.from_pretrained("small")'


def advice(folder: Path, model: str, loss: str) -> list[str]:
    result = conversion(folder, SCRIPT.replace("MODEL", model).replace("LOSS", loss))
    assert not result.refusals
    return [finding.message for finding in result.findings if finding.code == "RF302" and not finding.edits]


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (CAUSAL, "model(ids, labels=labels).loss"),
        (CAUSAL, "model(**batch)[0].mean()"),
        (CAUSAL, "model.forward(ids, labels=labels).loss / 4"),
        (f"torch.compile({CAUSAL})", "model(ids, labels=labels).loss"),
        (f"nn.DataParallel({CAUSAL}.cuda())", "model(ids, labels=labels)[0].mean()"),
        (f"get_peft_model({CAUSAL}, LoraConfig())", "model(ids, labels=labels).loss"),
        ('Own.from_pretrained("small")', "model(ids, labels=labels).loss"),
        ("Head()", "model(ids, labels)"),
    ],
)
def test_a_mean_over_tokens_is_listed(tmp_path: Path, model: str, loss: str) -> None:
    (message,) = advice(tmp_path, model, loss)
    assert message.startswith("the model's loss is the mean over the tokens")


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (CAUSAL, "model(ids, labels=ids).loss"),
        (CAUSAL, "model(input_ids=ids, labels=ids).loss"),
        (CAUSAL, "model(ids).logits.square().mean()"),
        ('AutoModelForSequenceClassification.from_pretrained("small")', "model(ids, labels=labels).loss"),
    ],
)
def test_a_mean_over_samples_is_not(tmp_path: Path, model: str, loss: str) -> None:
    assert not advice(tmp_path, model, loss)
