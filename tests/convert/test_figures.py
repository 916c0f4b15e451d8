"""Figures of a training loop are those of one process, on any number of ranks; what is not is listed."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from convert.additions_of import write_converted
from convert.conversion import conversion, converted
from verify.projects.launch import Launcher

SCRIPT = """\
import json
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm


class AverageMeter:
    def __init__(self):
        self.val = self.sum = self.count = self.avg = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


class Smoothed:
    def __init__(self):
        self.values = {}

    def update(self, **given):
        for name, value in given.items():
            self.values[name] = 0.9 * self.values.get(name, 0.0) + 0.1 * value


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        maxk = max(topk)
        batch_size = target.size(0)
        _, pred = output.topk(maxk, 1, True, True)
        pred = pred.t()
        correct = pred.eq(target.view(1, -1).expand_as(pred))
        res = []
        for k in topk:
            correct_k = correct[:k].reshape(-1).float().sum(0, keepdim=True)
            res.append(correct_k.mul_(100.0 / batch_size))
        return res


def fast_hist(label, pred, n):
    known = (label >= 0) & (label < n)
    return np.bincount(n * label[known] + pred[known], minlength=n ** 2).reshape(n, n)


torch.manual_seed(0)
rows = []


def show(*values):
    rows.append([np.asarray(v.detach() if torch.is_tensor(v) else v, dtype=float).tolist() for v in values])
    print(*values)


data = TensorDataset(torch.randn(25, 4), torch.randint(0, 3, (25,)))
batch_size = 6
train_loader = DataLoader(data, batch_size)
model = nn.Linear(4, 3)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
best = 0.0
for epoch in range(2):
    START
    for step, (x, y) in enumerate(train_loader):
        optimizer.zero_grad()
        out = model(x)
        LOSS
        loss.backward()
        optimizer.step()
        STEP
    END
json.dump(rows, open('rows.json', 'w'))
"""
# What is before, in and after a loop over batches, and the loss where it is not `criterion(out, y)`.
SHOWN: dict[str, tuple[str, ...]] = {
    "a mean of its own": (
        "acc = 0.0",
        "acc += (out.argmax(1) == y).sum().item() / len(y)",
        "show(acc / len(train_loader))",
    ),
    "a detached loss and counts in a bar": (
        "accu_loss = torch.zeros(1)\naccu_num = torch.zeros(1)\nseen = 0",
        "seen += x.shape[0]\naccu_num += torch.eq(torch.max(out, dim=1)[1], y).sum()\naccu_loss += loss.detach()\n"
        "show(accu_loss.item() / (step + 1), accu_num.item() / seen)",
        "show(accu_loss.item() / (step + 1), accu_num.item() / seen)",
    ),
    "a tensor": ("", "show(loss)", ""),
    "the data of tensors": (
        "hits = seen = 0",
        "_, guess = torch.max(out.data, 1)\nseen += y.size(0)\nhits += (guess == y.data).sum().item()\n"
        "right = out.data.max(1)[1].eq(y.data).cpu().sum()\nshow(hits / seen, right.item() / float(batch_size))",
        "show(hits / seen)",
    ),
    "a sum over the samples that count": (
        "",
        "show(loss.data, loss)",
        "",
        "loss = F.cross_entropy(out[y > 0], y[y > 0], reduction='sum')\nloss = loss / max((y > 0).sum(), 1)",
    ),
    "numbers of several kinds": (
        "a = b = c = d = 0.0",
        "a += loss.data.cpu().numpy()\nb += float(loss) * x.size(0)\n"
        "c += loss.item() * len(y)\nd += F.l1_loss(out, out * 0).detach()",
        "show(a / len(train_loader), b / len(data), c / len(data), d)",
    ),
    "a meter shown as it fills": (
        "losses, top1 = AverageMeter(), AverageMeter()",
        "prec1, prec2 = accuracy(out.data, y, topk=(1, 2))\nlosses.update(loss.item(), x.size(0))\n"
        "top1.update(prec1.item(), x.size(0))\nshow(losses.val, losses.avg, top1.val, top1.avg, prec2[0])",
        "show(losses.avg, top1.avg, top1.sum)",
    ),
    "a dictionary of losses": (
        "smoothed = Smoothed()",
        "terms = {'fit': loss, 'size': out.pow(2).mean()}\ntotal = sum(term for term in terms.values())\n"
        "smoothed.update(loss=total, **terms)\nshow(*smoothed.values.values())\n"
        "show(sum(t.item() for t in terms.values()))",
        "",
    ),
    "a confusion matrix": (
        "hist = np.zeros((3, 3))",
        "hist += fast_hist(y.numpy(), out.argmax(1).numpy(), 3)\nshow(np.diag(hist).sum() / hist.sum())",
        "show(hist, np.diag(hist) / hist.sum(1).clip(1))",
    ),
    "lists for a library's metric": (
        "truth, guess = [], []",
        "truth.extend(y.tolist())\nguess += out.argmax(1).tolist()",
        "show(np.mean([t == g for t, g in zip(truth, guess)]), np.cov(truth, guess), truth)",
    ),
    "arrays that are put together": (
        "scores, labels = [], []",
        "scores.append(out.detach().cpu().numpy())\nlabels.append(y)",
        "show(np.concatenate(scores).max(0), (torch.cat(labels) == 1).float().mean())",
    ),
    "progress by samples": (
        "bar = tqdm(total=len(data))",
        "bar.update(x.size(0))\nshow(step * len(x), len(train_loader.dataset))",
        "show(bar.n)\nbar.close()",
    ),
    "a decision": (
        "hits = n = 0",
        "hits += (out.argmax(1) == y).sum().item()\nn += y.size(0)\nif loss.item() < 0.9:\n    show(1.0)\n    break",
        "if hits / n > best:\n    best = hits / n\nshow(best)",
    ),
}


def script_of(*given: str) -> str:
    text = SCRIPT
    parts = (*given, "loss = criterion(out, y)")[:4]
    for word, indent, part in zip(("START", "STEP", "END", "LOSS"), (4, 8, 4, 8), parts):
        text = text.replace(" " * indent + word + "\n", textwrap.indent(part or "pass", " " * indent) + "\n")
    return text


def numbers(values: Any) -> list[float]:
    return [number for value in values for number in numbers(value)] if isinstance(values, list) else [values]


@pytest.mark.parametrize("name", SHOWN)
def test_figures_equal_those_of_one_process(name: str, tmp_path: Path, launcher: Launcher) -> None:
    original, folder = tmp_path / "a", tmp_path / "b"
    for place in (original, folder):
        place.mkdir()
    result = conversion(folder, script_of(*SHOWN[name]))
    assert [finding.message for finding in result.listed] == []
    (original / "train.py").write_text(script_of(*SHOWN[name]))
    write_converted(folder, result)
    assert launcher.run(original, "train.py", [])["statuses"] == [0]
    alone = json.loads((original / "rows.json").read_text())
    assert alone
    for world_size in (1, 2, 3):
        run = launcher.run(folder, "train.py", [], world_size=world_size, RETROFIT_BATCH="global")
        assert run["statuses"] == [0] * world_size, run["outputs"]
        together = json.loads((folder / "rows.json").read_text())
        assert numbers(together) == pytest.approx(numbers(alone), rel=1e-4, abs=1e-5), world_size


def test_a_batch_that_every_rank_has_is_divided_by_its_own_size(tmp_path: Path) -> None:
    step = "if step % 2 == 0:\n    number, (points, labels) = next(enumerate(test_loader, 0))\n"
    step += "    right = model(points).data.max(1)[1].eq(labels).sum()\n    print(right.item() / float(batch_size))"
    script = script_of("", step, "").replace("best = 0.0\n", "test_loader = DataLoader(data, batch_size)\n")
    script += "hits = 0\nfor points, labels in test_loader:\n"
    script += "    hits += model(points).data.max(1)[1].eq(labels).sum().item()\nprint(hits / len(data))\n"
    result = conversion(tmp_path, script)
    (text,) = (file.text for file in result.files)
    assert "print(right.item() / float(batch_size))" in text and not result.listed


def test_a_count_next_to_an_unknown_value_is_not_summed(tmp_path: Path) -> None:
    step = "hits += library.hits(out, y)\nseen += y.size(0)"
    result = conversion(tmp_path, "import library\n" + script_of("hits = seen = 0", step, "show(hits / seen)"))
    (text,) = (file.text for file in result.files)
    assert "    seen += y.size(0)\n" in text and result.listed


LOGGING = """
def log(text, end=""):
    print(text + end)


def log_all(name, *values, end=""):
    print(name, *values, end=end)


class Log:
    def write(self, text):
        log("%s" % text)


"""


def test_a_figure_that_a_helper_prints_is_listed_at_the_call(tmp_path: Path) -> None:
    step = "log('step %d' % step)\nlog('median %f' % out.median().item())\n"
    step += "Log().write('max {0:.3f}'.format(out.max()))\npair = library.mean([(1, out.median())])\nlog(str(pair))"
    script = "import library\n" + script_of("", step, "").replace("torch.manual_seed(0)\n", LOGGING)
    result = conversion(tmp_path, script)
    text = result.files[0].text.splitlines()
    listed = [text[finding.place.line - 1].strip() for finding in result.listed]
    assert listed[:3] == [line for line in step.splitlines() if line.startswith(("log('m", "Log", "log(str"))]


def test_values_that_a_helper_prints_with_a_star_are_listed_at_the_call(tmp_path: Path) -> None:
    step = "log_all('step', step)\nlog_all('median', step, out.median().item(), end='')\nlog_all('epoch', epoch, 0.1)"
    result = conversion(tmp_path, script_of("", step, "").replace("torch.manual_seed(0)\n", LOGGING))
    (finding,) = result.listed
    assert "log_all('median'" in result.files[0].text.splitlines()[finding.place.line - 1]
    assert finding.message == "rank 0's share: out.median().item(), is printed"


@pytest.mark.parametrize(
    ("key", "is_listed"),
    [
        ("'max_' + k", False),
        ("f'{k}_max'", False),
        ("'%s_%.1f' % (k, 0.5)", False),
        ("k", True),
        ("'l' + k", True),
        ("'%sr' % k", True),
        ("f'{k}'", True),
    ],
)
def test_an_entry_is_not_listed_by_keys_that_it_cannot_have(tmp_path: Path, key: str, is_listed: bool) -> None:
    start = "log = {'lr': optimizer.param_groups[0]['lr']}"
    step = f"for k, v in library.figures(out).items():\n    log[{key}] = v"
    result = conversion(tmp_path, "import library\n" + script_of(start, step, "show(log['lr'])"))
    assert bool(result.listed) == is_listed


def test_a_template_reads_the_attributes_of_a_meter_that_it_names(tmp_path: Path) -> None:
    evaluation = "top1 = AverageMeter()\nmodel.eval()\nwith torch.no_grad():\n    for a, b in val_loader:\n"
    evaluation += "        top1.update((model(a).argmax(1) == b).float().mean().item(), a.size(0))\n"
    evaluation += "print('all {top1.avg:.3f}, {0:{1}}'.format(epoch, 3, top1=top1))\nmodel.train()"
    script = script_of("", "", evaluation).replace("best = 0.0\n", "val_loader = DataLoader(data, batch_size)\n")
    result = conversion(tmp_path, script)
    assert "share_batches(val_loader)" in result.files[0].text and not result.listed
    whole = conversion(tmp_path, script.replace("{top1.avg:.3f}", "{top1.val:.3f}"))
    assert "share_batches(val_loader)" not in whole.files[0].text


def test_an_argument_of_a_loss_is_not_a_loss(tmp_path: Path) -> None:
    loss = "scores = library.pack(out)\nlabels = library.pack(y)\nloss = criterion(scores, labels)"
    step = "show(library.accuracy(scores, labels), loss.item())"
    for weight in ("", "ignore_index=1"):  # a criterion that is wrapped, and one that is not
        script = script_of("", step, "", loss).replace("CrossEntropyLoss()", f"CrossEntropyLoss({weight})")
        result = conversion(tmp_path, "import library\n" + script)
        assert "show(library.accuracy(scores, labels), rd.reduce_loss(loss).item())" in result.files[0].text
        assert result.listed


CODEBOOK = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.table = nn.Linear(8, 8), nn.Embedding(5, 8)

    def forward(self, x):
        z = self.body(x)
        codes = torch.argmin((z**2).sum(1, keepdim=True) - 2 * z @ self.table.weight.t(), dim=1)
        used = torch.zeros(codes.shape[0], 5).scatter_(1, codes.unsqueeze(1), 1)
        mean = torch.mean(used, dim=0)
        return torch.mean((self.table(codes) - z) ** 2), z, FIGURE


torch.manual_seed(0)
model = Coder()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
for (x,) in DataLoader(TensorDataset(torch.randn(32, 8)), batch_size=8, shuffle=True):
    loss, out, figure = model(x)
    optimizer.zero_grad()
    (F.mse_loss(out, x) + loss).backward()
    optimizer.step()
    kept.append(figure.cpu().detach().numpy())
print(kept[-1])
"""


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        ("torch.exp(-torch.sum(mean * torch.log(mean + 1e-10)))", "figure.cpu()"),
        ("z.std(0).mean()", "figure.cpu()"),
        ("(codes == 0).float().mean()", "rd.reduce_loss(figure).cpu()"),
        ("(codes == 0).sum()", "rd.reduce_total(figure).cpu()"),
        ("codes", "rd.data.gather_batch(figure.cpu())"),
    ],
)
def test_what_a_model_gives_is_rows_of_the_batch_or_a_figure_of_it(figure: str, expected: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, CODEBOOK.replace("FIGURE", figure))
    assert f"kept.append({expected}.detach().numpy())" in result.files[0].text


TRAINER = """
import math


class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.tokens = model, optimizer, 0

    def run(self):
        for x, y in train_loader:
            self.optimizer.zero_grad()
            criterion(self.model(x), y).backward()
            self.optimizer.step()
            self.tokens += (y >= 0).sum()
            factor = float(self.tokens) / 10 if self.tokens < 10 else math.cos(float(self.tokens) / 50)
            for group in self.optimizer.param_groups:
                group['lr'] = 0.1 * factor


Trainer(model, optimizer).run()
"""


def test_a_count_that_sets_the_rate_is_of_all_processes(tmp_path: Path) -> None:
    lines = converted(tmp_path, SCRIPT.partition("best = 0.0")[0] + TRAINER)
    assert "self.tokens += rd.reduce_total((y >= 0).sum())" in lines


def test_an_unknown_figure_that_sets_the_rate_is_listed(tmp_path: Path) -> None:
    step = "for group in optimizer.param_groups:\n    group['lr'] = 0.1 * out.max().item()"
    result = conversion(tmp_path, script_of("", step, ""))
    assert [finding.message for finding in result.listed] == [
        "rank 0's share: group['lr'], by which each rank decides on its own"
    ]


def test_a_mean_over_outputs_by_name_is_divided_by_their_number(tmp_path: Path) -> None:
    loss = "outs = {'a': model(x), 'b': -model(x)}\nloss = 0\nfor name in outs.keys():\n"
    loss += "    loss = loss + criterion(outs[name], y)"
    lines = converted(tmp_path, script_of("", "show(loss.item() / float(len(outs)))", "", loss))
    assert "show(rd.reduce_loss(loss).item() / float(len(outs)))" in lines


def test_a_loss_times_the_number_of_graphs_is_added_up_over_all_processes(tmp_path: Path) -> None:
    script = script_of("total = 0.0", "total += float(loss) * batch.num_graphs", "show(total / len(data))")
    script = script.replace("(x, y) in enumerate", "batch in enumerate").replace("model(x)", "model(batch.x)")
    lines = converted(tmp_path, script.replace("criterion(out, y)", "criterion(out, batch.y)"))
    assert "total += rd.reduce_total(float(rd.reduce_loss(loss)) * batch.num_graphs)" in lines


STOP = "if out.max() > 9:\n    break"


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (STOP, "if rd.collectives.broadcast_object(bool(out.max() > 9)):"),
        ("if out.max() > 9:\n    raise SystemExit('large')", "if out.max() > 9:"),
        ("if out.max() > 9:\n    print('large')", "if out.max() > 9:"),
        ("if loss > 0.1:\n    if out.max() > 9:\n        break", "if out.max() > 9:"),
        # once for each sample, of which one rank may have more than another
        ("for row in range(math.ceil(len(x) / 2)):\n    if out.max() > 9:\n        break", "if out.max() > 9:"),
        ("for row in out:\n    if out.max() > 9:\n        break", "if out.max() > 9:"),
    ],
)
def test_rank_0_decides_about_the_end_of_a_loop_where_all_come_to_it(step: str, expected: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, script_of("", step, ""))
    assert expected in result.files[0].text
    assert any("rank 0's share: out.max() > 9, by which" in finding.message for finding in result.listed) or (
        "SystemExit" in step or "print" in step
    )


PASSED_ON = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def passed_on(source):
    {body}


loader = DataLoader(TensorDataset(torch.randn(16, 3)), 4, shuffle=True)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number, (x,) in {drawn}:
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(number, len(x))
"""


@pytest.mark.parametrize("drawn", ["passed_on(enumerate(loader))", "enumerate(passed_on(loader))"])
@pytest.mark.parametrize("body", ["yield from source", "for item in source: yield item"])
def test_a_batch_that_a_generator_passes_on_is_a_batch(tmp_path: Path, body: str, drawn: str) -> None:
    assert "print(number, rd.reduce_total(len(x)))" in converted(tmp_path, PASSED_ON.format(body=body, drawn=drawn))


@pytest.mark.parametrize(
    "body", ["for item in source: yield item[0], item[1]", "for item in source: item = item[0], item[1]; yield item"]
)
def test_what_a_generator_makes_of_its_batches_is_not_taken_for_them(tmp_path: Path, body: str) -> None:
    script = PASSED_ON.format(body=body, drawn="passed_on(enumerate(loader))")
    result = conversion(tmp_path, script)
    text = "".join(file.text for file in result.files if file.path.name == "train.py")
    assert "rd.reduce_total(len(x))" not in text


METRIC = """\
import torch
from sklearn import metrics
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(TensorDataset(torch.randn(32, 4), torch.randint(0, 3, (32,))), batch_size=8):
    output = model(x)
    loss = nn.functional.cross_entropy(output, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    found = output.argmax(1).cpu().numpy()
    print(FIGURE)
"""


@pytest.mark.parametrize(
    ("figure", "is_mean"),
    [
        ("metrics.accuracy_score(y.cpu().numpy(), found)", True),
        ("100 * metrics.accuracy_score(y.numpy(), found)", True),
        ("metrics.mean_squared_error(y.numpy(), found)", True),
        ("metrics.accuracy_score(y.numpy(), found, normalize=False)", False),
        ("metrics.f1_score(y.numpy(), found, average='macro')", False),
    ],
)
def test_a_mean_over_the_samples_by_a_library_is_reduced(figure: str, is_mean: bool, tmp_path: Path) -> None:
    result = conversion(tmp_path, METRIC.replace("FIGURE", figure))
    assert ("rd.reduce_loss(metrics." in result.files[0].text) == is_mean
    assert bool(result.listed) != is_mean
