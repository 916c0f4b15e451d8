"""Losses of libraries: a sum over the batch, a mean over it, a loss for each sample, a mean over the tokens that count.

Also losses that a model computes in its forward, whichever class it is of.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader
from data import Sentences
from library import Pretrained
IMPORT

"""
TRAIN = """
loader = DataLoader(Sentences(), 4, shuffle=True)
MODEL
optimizer = optim.SGD(model.parameters(), lr=0.1)
for words, tags, mask in loader:
    optimizer.zero_grad()
    LOSS
    loss.backward()
    optimizer.step()
    print(loss.item())
"""
TAGGER = "model, layer = nn.Linear(3, 5), "


def script(library: str, made: str, loss: str) -> str:
    lines = TRAIN.replace("LOSS", loss.replace("\n", "\n    ")).replace("MODEL", made)
    return HEAD.replace("IMPORT", library) + lines


SUMS = [
    ("from torchcrf import CRF", "CRF(5)", "-layer(model(words), tags)"),
    ("from torchcrf import CRF", "CRF(5, batch_first=True)", "layer(model(words), tags, mask) * (-1)"),
    ("import torchcrf", "torchcrf.CRF(5)", "-1 * layer(model(words), tags, mask=mask, reduction='sum')"),
    ("from torchcrf import CRF", "CRF(5)", "layer(model(words), tags, mask, 'sum').neg()"),
    ("from TorchCRF import CRF", "CRF(5)", "-layer(model(words), tags, mask).sum()"),
    (
        "from allennlp.modules.conditional_random_field import ConditionalRandomField",
        "ConditionalRandomField(5)",
        "-layer(model(words), tags, mask)",
    ),
    ("from warpctc_pytorch import CTCLoss", "CTCLoss()", "layer(model(words), tags, mask, mask)"),
    ("from warpctc_pytorch import CTCLoss", "CTCLoss(size_average=False)", "layer(model(words), tags, mask, mask)"),
    ("from torch_baidu_ctc import ctc_loss", "None", "ctc_loss(model(words), tags, mask, mask)"),
    ("from torchvision.ops import sigmoid_focal_loss", "None", "sigmoid_focal_loss(model(words), tags).sum()"),
]
MEANS = [
    ("from torchcrf import CRF", "CRF(5)", "-layer(model(words), tags, reduction='mean')"),
    ("from torchcrf import CRF", "CRF(5)", "-layer(model(words), tags, mask, 'mean')"),
    ("from torchcrf import CRF", "CRF(5)", "-layer(model(words), tags) / words.size(0)"),
    ("from torchcrf import CRF", "CRF(5)", "-layer(model(words), tags, reduction='none').mean()"),
    ("from TorchCRF import CRF", "CRF(5)", "-layer(model(words), tags, mask).mean()"),
    ("from warpctc_pytorch import CTCLoss", "CTCLoss(size_average=True)", "layer(model(words), tags, mask, mask)"),
    ("from warpctc_pytorch import CTCLoss", "CTCLoss()", "layer(model(words), tags, mask, mask) / len(words)"),
    ("from torchvision.ops import sigmoid_focal_loss", "None", "sigmoid_focal_loss(model(words), tags).mean()"),
    (
        "from torchvision.ops import sigmoid_focal_loss",
        "None",
        "sigmoid_focal_loss(model(words), tags, reduction='mean')",
    ),
    ("from kornia.losses import FocalLoss", "FocalLoss(0.5)", "layer(model(words), tags).mean()"),
    ("from monai.losses import DiceLoss", "DiceLoss()", "layer(model(words), tags)"),
]
COUNTED = [
    ("from torchcrf import CRF", "CRF(5)", "-layer(model(words), tags, mask, reduction='token_mean')"),
    ("from torchcrf import CRF", "CRF(5)", "-layer(model(words), tags, mask, 'token_mean')"),
    ("from torchcrf import CRF", "CRF(5)", "way = 'token_mean'\nloss = -layer(model(words), tags, reduction=way)"),
    ("from warpctc_pytorch import CTCLoss", "CTCLoss(length_average=True)", "layer(model(words), tags, mask, mask)"),
]


def judged(tmp_path: Path, text: str, **modules: str) -> bool:
    """Return whether a converted script takes its loss for a sum: in its gradients, its figures and its rate."""
    found = converted(tmp_path, text, **modules)
    is_sum = "rd.loss.sum_loss(loss).backward()" in found
    assert is_sum is not ("loss.backward()" in found)
    assert is_sum is ("print(rd.reduce_total(loss).item())" in found)
    assert is_sum is ("optimizer = optim.SGD(model.parameters(), lr=0.1)" in found)
    return is_sum


@pytest.mark.parametrize("case", range(len(SUMS)))
def test_a_sum_of_a_library_stays_a_sum(case: int, tmp_path: Path) -> None:
    library, made, loss = SUMS[case]
    assert judged(tmp_path, script(library, TAGGER + made, f"loss = {loss}"))


@pytest.mark.parametrize("case", range(len(MEANS)))
def test_a_mean_of_a_library_stays_a_mean(case: int, tmp_path: Path) -> None:
    library, made, loss = MEANS[case]
    assert not judged(tmp_path, script(library, TAGGER + made, f"loss = {loss}"))


@pytest.mark.parametrize("case", range(len(COUNTED)))
def test_a_mean_over_the_tokens_that_count_is_listed(case: int, tmp_path: Path) -> None:
    library, made, loss = COUNTED[case]
    text = script(library, TAGGER + made, loss if "\n" in loss else f"loss = {loss}")
    (finding,) = (f for f in conversion(tmp_path, text).findings if f.code == "RF302")
    assert not finding.edits and "tokens or frames" in finding.message


CLASSES = """\
from torchcrf import CRF


class Tagger(Pretrained):
    def __init__(self, config):
        super().__init__(config)
        self.layer, self.crf = nn.Linear(3, 5), CRF(5)

    def forward(self, words, mask=None, tags=None):
        outputs = (self.layer(words),)
        if tags is not None:
            outputs = (TOTAL,) + outputs
        return outputs


class Other(Tagger):
    pass


CLASSES = {"tagger": (int, Tagger, str), "other": (int, Other, str)}
"""
SUMMED = "-self.crf(outputs[0], tags, mask)"
IGNORING = "nn.CrossEntropyLoss(ignore_index=-100)(outputs[0], tags)"
MODELS = {
    "built": "model = Tagger(None)",
    "loaded": "model = Tagger.from_pretrained('base')",
    "of a table": "_, kind, _ = CLASSES['tagger']\nmodel = kind.from_pretrained('base')",
    "of a table by an option": "import sys\nmodel = CLASSES[sys.argv[1]][1].from_pretrained('base')",
    "of a module": "import sys\nimport models\nmodel = getattr(models, sys.argv[1])(None)",
}
CALLS = {
    "by name": "loss = model(words, tags=tags)[0]",
    "by position": "loss, logits = model(words, mask, tags)",
    "in a dict": "inputs = {'words': words, 'tags': tags}\noutputs = model(**inputs)\nloss = outputs[0]",
    "in a dict that is not known": "outputs = model(**Sentences.inputs(words, tags))\nloss = outputs[0]",
}


def of_model(made: str, call: str, total: str) -> tuple[str, dict[str, str]]:
    """Return a script whose model computes its loss, with its modules."""
    classes = CLASSES.replace("TOTAL", total)
    if "models" not in made:
        return script(classes, made, call), {}
    return script("", made, call), {"models": "from torch import nn\nfrom library import Pretrained\n" + classes}


@pytest.mark.parametrize("made", MODELS)
@pytest.mark.parametrize("call", CALLS)
def test_the_sum_in_the_forward_of_a_model_is_found(made: str, call: str, tmp_path: Path) -> None:
    text, modules = of_model(MODELS[made], CALLS[call], SUMMED)
    assert judged(tmp_path, text, **modules)


@pytest.mark.parametrize("made", MODELS)
def test_what_counts_in_the_forward_of_a_model_is_counted_over_the_ranks(made: str, tmp_path: Path) -> None:
    text, modules = of_model(MODELS[made], CALLS["by name"], IGNORING)
    result = conversion(tmp_path, text, **modules)
    expected = "rd.loss.distribute_criterion(nn.CrossEntropyLoss(ignore_index=-100))(outputs[0], tags)"
    assert not result.refusals and any(expected in file.text for file in result.files)
    assert any("model = rd.distribute_model(model)" in file.text for file in result.files if file.path.stem == "train")
