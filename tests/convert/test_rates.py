"""Whether a learning rate follows the batch of all processes, wherever it comes from."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

from retrofit.training import read_project
from retrofit.training.optimizer.rate_rules import rate_rules

HEAD = """\
import argparse
import json
from functools import partial

import torch
from torch import nn, optim
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--opt", default="sgd")
args = parser.parse_args()
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(16, 3)), 4, shuffle=True)
model = nn.Linear(3, 1)
"""
TRAIN = """\
model.train()
for (x,) in loader:
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
"""
TABLE = "table = {'sgd': SGD, 'adam': Adam}\n"
CUSTOM = """\
def make(target):
    options = {'lr': args.lr}
    if args.opt == 'sgd':
        kind = SGD
    else:
        kind = Adam
        options['betas'] = (0.5, 0.9)

    class Custom(kind):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)

    return Custom(target.parameters(), **options)


optimizer = make(model)
"""
OWN = """\
class Plain(torch.optim.Optimizer):
    def __init__(self, params, decay=0, lr=0.1):
        super().__init__(params, dict(lr=lr, decay=decay))


class Sharp(torch.optim.Optimizer):
    def __init__(self, params, base, **kwargs):
        self.base = base(params, **kwargs)
        self.param_groups = self.base.param_groups


class Ahead(torch.optim.Optimizer):
    def __init__(self, optimizer, steps=5):
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups


"""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("optimizer = table[args.opt](model.parameters(), lr=args.lr)", "lr=rd.scaled_lr(args.lr)"),
        ("optimizer = table.get(args.opt, SGD)(model.parameters(), lr=args.lr)", "lr=rd.scaled_lr(args.lr)"),
        ("kind = getattr(optim, args.opt)\noptimizer = kind(model.parameters(), args.lr)", "rd.scaled_lr(args.lr))"),
        ("kind = vars(optim)[args.opt]\noptimizer = kind(model.parameters(), args.lr)", "rd.scaled_lr(args.lr))"),
        (
            OWN + "optimizer = Plain(model.parameters(), 0, args.lr)",
            "Plain(model.parameters(), 0, rd.scaled_lr(args.lr))",
        ),
        (OWN + "optimizer = Sharp(model.parameters(), SGD, lr=args.lr)", "SGD, lr=rd.scaled_lr(args.lr))"),
        (
            OWN + "optimizer = Ahead(SGD(model.parameters(), lr=args.lr))",
            "SGD(model.parameters(), lr=rd.scaled_lr(args.lr))",
        ),
        ("optimizer = SGD([dict(params=model.parameters(), lr=args.lr)])", "lr=rd.scaled_lr(args.lr))])"),
    ],
)
def test_a_known_learning_rate_is_scaled_in_place(lines: str, expected: str, tmp_path: Path) -> None:
    found = converted(tmp_path, HEAD + TABLE + lines + "\n" + TRAIN)
    (scaled,) = (line for line in found if "scaled_lr" in line or "scale_optimizer" in line)
    assert expected in scaled


@pytest.mark.parametrize(
    "lines",
    [
        "optimizer = Adam(model.parameters(), betas=(0.5, 0.9))",
        "options = {'lr': args.lr}\noptimizer = table[args.opt](model.parameters(), **options)",
        "options = dict(weight_decay=0)\noptions['lr'] = args.lr\noptimizer = Adam(model.parameters(), **options)",
        "optimizer = Adam(model.parameters(), **json.load(open('adam.json')))",
        "def make(params, **options):\n    return Adam(params, **options)\noptimizer = make(model.parameters(), lr=1)",
        "def choose():\n    return SGD, {'lr': args.lr}\nkind, options = choose()\n"
        "optimizer = kind(model.parameters(), **options)",
        "table['quick'] = partial(SGD, lr=args.lr)\noptimizer = table['quick'](model.parameters())",
        "make = partial(Adam, betas=(0.5, 0.9))\noptimizer = make(model.parameters())",
        "groups = []\ngroups.append({'params': model.parameters(), 'lr': args.lr})\noptimizer = Adam(groups)",
        CUSTOM,
        OWN + "optimizer = Plain(model.parameters())",
        OWN + "optimizer = Ahead(Adam(model.parameters()))",
    ],
)
def test_an_optimizer_with_an_unknown_rate_is_scaled_as_a_whole(lines: str, tmp_path: Path) -> None:
    found = converted(tmp_path, HEAD + TABLE + lines + "\n" + TRAIN)
    assert sum(line.count("rd.learning_rate.scale_optimizer(") for line in found) == 1
    assert not any("scaled_lr" in line for line in found)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("CosineAnnealingLR(optimizer, 10, eta_min=args.lr / 100)", "eta_min=rd.scaled_lr(args.lr / 100)"),
        ("CosineAnnealingLR(optimizer, 10, 1e-4)", "10, rd.scaled_lr(1e-4))"),
        ("CosineAnnealingWarmRestarts(optimizer, 10, 2, 1e-4)", "10, 2, rd.scaled_lr(1e-4))"),
        ("ReduceLROnPlateau(optimizer, 'max', min_lr=[1e-5])", "min_lr=rd.scaled_lr([1e-5])"),
        ("CyclicLR(optimizer, 0.01, max_lr=args.lr)", "rd.scaled_lr(0.01), max_lr=rd.scaled_lr(args.lr)"),
        ("CosineAnnealingLR(optimizer, 10, eta_min=0)", "eta_min=0)"),
        ("CosineAnnealingLR(optimizer, 10)", "10)"),
    ],
)
def test_all_rates_of_a_schedule_follow_the_batch_like_the_first(schedule: str, expected: str, tmp_path: Path) -> None:
    lines = f"optimizer = SGD(model.parameters(), lr=args.lr)\nschedule = optim.lr_scheduler.{schedule}\n"
    (line,) = (line for line in converted(tmp_path, HEAD + lines + TRAIN) if line.startswith("schedule ="))
    assert line.endswith(expected) or expected in line
    assert expected in line and line.count("scaled_lr") == expected.count("scaled_lr")


def test_a_factory_of_many_classes_is_scaled_where_it_builds_an_optimizer(tmp_path: Path) -> None:
    make = "def make(module, name, *args):\n    return getattr(module, name)(*args, **json.load(open(name)))\n\n\n"
    make += "optimizer = make(optim, 'Adam', model.parameters())\n"
    make += "schedule = make(optim.lr_scheduler, 'StepLR', optimizer)\n"
    found = converted(tmp_path, HEAD + make + TRAIN)
    assert "optimizer = rd.learning_rate.scale_optimizer(make(optim, 'Adam', model.parameters()))" in found
    assert sum("scale_optimizer" in line for line in found) == 1


def test_every_rate_is_scaled_once_if_one_optimizer_is_scaled_as_a_whole(tmp_path: Path) -> None:
    make = "optimizer = Adam(model.parameters())\nother = SGD([{'params': [], 'lr': 0.2}], lr=args.lr)\n"
    make += "optimizer.add_param_group({'params': [], 'lr': 0.3})\n"
    found = converted(tmp_path, HEAD + make + TRAIN)
    assert "optimizer = rd.learning_rate.scale_optimizer(Adam(model.parameters()))" in found
    assert "other = rd.learning_rate.scale_optimizer(SGD([{'params': [], 'lr': 0.2}], lr=args.lr))" in found
    assert "optimizer.add_param_group({'params': [], 'lr': rd.scaled_lr(0.3)})" in found


GROUP = "{'params': head.parameters(), **options}"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (f"options = {{'lr': 0.01}}\noptimizer.add_param_group({GROUP})", f"scaled_lr({GROUP}))"),
        (f"options = getattr(head.weight, '_optim')\noptimizer.add_param_group({GROUP})", f"scaled_lr({GROUP}))"),
        (
            "for options in json.load(open('groups.json')):\n    optimizer.add_param_group(dict(params=[], **options))",
            "scaled_lr(dict(params=[], **options)))",
        ),
        ("group = {'params': []}\ngroup['lr'] = 0.01\noptimizer.add_param_group(group)", "scaled_lr(group))"),
        ("group = {'params': []}\ngroup.update(lr=0.01)\noptimizer.add_param_group(group)", "scaled_lr(group))"),
        ("optimizer.add_param_group(param_group=json.load(open('g.json')))", "scaled_lr(json.load(open('g.json'))))"),
    ],
)
def test_a_group_that_may_hide_its_rate_is_scaled_as_a_whole(lines: str, expected: str, tmp_path: Path) -> None:
    made = "head = nn.Linear(1, 1)\noptimizer = SGD(model.parameters(), lr=args.lr)\n"
    found = converted(tmp_path, HEAD + made + lines + "\n" + TRAIN)
    assert "optimizer = SGD(model.parameters(), lr=rd.scaled_lr(args.lr))" in found
    (line,) = (line for line in found if "add_param_group" in line)
    assert line.endswith(expected) and line.count("scaled_lr") == 1


@pytest.mark.parametrize(
    "lines",
    [
        "optimizer.add_param_group({'params': [], 'weight_decay': 0})",
        "options = {'weight_decay': 0}\noptimizer.add_param_group({'params': [], **options})",
        "group = dict(params=[])\ngroup['weight_decay'] = 0\noptimizer.add_param_group(group)",
    ],
)
def test_a_group_without_a_rate_has_that_of_its_optimizer(lines: str, tmp_path: Path) -> None:
    made = "optimizer = SGD(model.parameters(), lr=args.lr)\n"
    assert lines.splitlines()[-1] in converted(tmp_path, HEAD + made + lines + "\n" + TRAIN)


def test_a_group_that_a_function_makes_is_scaled_once(tmp_path: Path) -> None:
    make = "def group_of(part, lr):\n    return {'params': part.parameters(), 'lr': lr}\n\n\n"
    added = "optimizer.add_param_group(group_of(model, 0.01))\n"
    seen = converted(tmp_path, HEAD + make + "optimizer = SGD([], lr=args.lr)\n" + added + TRAIN)
    assert "return {'params': part.parameters(), 'lr': rd.scaled_lr(lr)}" in seen and added.strip() in seen
    whole = converted(tmp_path, HEAD + make + "optimizer = Adam([])\n" + added + TRAIN)
    assert "return {'params': part.parameters(), 'lr': lr}" in whole
    assert "optimizer.add_param_group(rd.scaled_lr(group_of(model, 0.01)))" in whole


def test_an_optimizer_whose_groups_may_hide_a_rate_is_scaled_as_a_whole(tmp_path: Path) -> None:
    made = "options = {'lr': 0.01}\n"
    made += "optimizer = SGD([{'params': [], **options}, {'params': model.parameters(), 'lr': 0.2}], lr=args.lr)\n"
    found = converted(tmp_path, HEAD + made + TRAIN)
    assert any(
        line.startswith("optimizer = rd.learning_rate.scale_optimizer(SGD([{'params': [], **o") for line in found
    )
    assert not any("scaled_lr" in line for line in found)


def test_a_group_is_scaled_where_it_is_given_not_where_it_is_handed_on(tmp_path: Path) -> None:
    wrapper = "class Ahead:\n    def __init__(self, optimizer):\n        self.optimizer = optimizer\n\n"
    wrapper += "    def add_param_group(self, group):\n        self.optimizer.add_param_group(group)\n\n\n"
    made = wrapper + "optimizer = SGD(model.parameters(), lr=args.lr)\nahead = Ahead(optimizer)\n"
    found = converted(tmp_path, HEAD + made + "ahead.add_param_group({'params': [], 'lr': 0.3})\n" + TRAIN)
    assert "self.optimizer.add_param_group(group)" in found
    assert "ahead.add_param_group({'params': [], 'lr': rd.scaled_lr(0.3)})" in found


@pytest.mark.parametrize(
    "helper",
    [
        "    with open('cache.txt', 'w') as file:\n        file.write('1')\n",
        "    if not os.path.exists('cache'):\n        os.makedirs('cache')\n",
    ],
)
def test_a_sum_keeps_its_rates_whatever_its_loop_is_counted_by(helper: str, tmp_path: Path) -> None:
    data = f"class Data:\n    def __init__(self):\n{helper.replace('    ', '        ')}        self.size = 4\n\n\n"
    made = "groups = [dict(params=model.parameters(), lr=args.lr)]\noptimizer = SGD(groups)\nsteps = 4 * Data().size\n"
    train = TRAIN.replace("model(x).pow(2).mean()", "(model(x).pow(2).sum() * (1 - 1 / steps))")
    found = converted(tmp_path, "import os\n" + HEAD + data + made + train)
    assert "groups = [dict(params=model.parameters(), lr=args.lr)]" in found
    assert any("rd.loss.sum_loss(" in line for line in found)


def test_the_rate_of_a_training_without_a_loader_is_unchanged(tmp_path: Path) -> None:
    image = (
        "image = torch.zeros(1, 3, requires_grad=True)\nartist = Adam([image], lr=args.lr)\nfor step in range(3):\n"
        "    artist.zero_grad()\n    (image - 1).pow(2).mean().backward()\n    artist.step()\n"
    )
    made = "optimizer = optim.SGD(model.parameters(), lr=args.lr)\n"
    result = conversion(tmp_path, HEAD + made + TRAIN + image)
    text = result.files[0].text
    assert "optim.SGD(model.parameters(), lr=rd.scaled_lr(args.lr))" in text and ", lr=args.lr)\nfor step" in text
    assert any(
        "this training draws from no loader" in note for _, note in rate_rules(read_project(tmp_path / "train.py"))
    )


@pytest.mark.parametrize(
    ("keep", "draw"),
    [
        ("memory.append((x, y))", "x, y = random.choice(memory)"),
        ("last = x", "x, y = last, 0"),
        ("replay.push(x, y)", "x, y = replay.sample(2)"),
    ],
)
def test_the_rate_of_a_training_on_kept_batches_follows_the_batch(keep: str, draw: str, tmp_path: Path) -> None:
    made = "import random\nfrom elsewhere import Replay\nmemory, replay = [], Replay()\n"
    made += "optimizer = optim.SGD(model.parameters(), lr=args.lr)\nsecond = Adam(model.parameters(), lr=args.lr)\n"
    first = TRAIN.replace("    optimizer.zero_grad()", f"    {keep}\n    optimizer.zero_grad()", 1)
    again = f"for step in range(3):\n    {draw}\n    second.zero_grad()\n    (model(x) - y).pow(2).mean().backward()\n"
    lines = converted(tmp_path, HEAD + made + first + again + "    second.step()\n")
    assert keep in lines and "second = Adam(model.parameters(), lr=rd.scaled_lr(args.lr))" in lines


def test_an_unknown_optimizer_is_listed(tmp_path: Path) -> None:
    make = "from fast import make_optimizer\n\noptimizer = make_optimizer(model)\n"
    (finding,) = (f for f in conversion(tmp_path, HEAD + make + TRAIN).findings if f.code == "RF306")
    assert not finding.edits and "how optimizer gets its learning rate" in finding.message
    assert finding.place.line == (HEAD + make + TRAIN).splitlines().index("    optimizer.step()") + 1


def test_a_rate_set_by_assignment_is_logged_as_it_is_used(tmp_path: Path) -> None:
    decay = "def decay(epoch):\n    lr = args.lr * 0.1 ** epoch\n    for group in optimizer.param_groups:\n"
    decay += "        group['lr'] = lr\n    print('rate %g of %g' % (lr, args.lr), f'{lr:g}')\n    return lr\n\n\n"
    found = converted(tmp_path, HEAD + decay + "optimizer = SGD(model.parameters(), lr=args.lr)\ndecay(1)\n" + TRAIN)
    assert any("group['lr'] = rd.scaled_lr(lr)" in line for line in found)
    assert any("'rate %g of %g' % (rd.scaled_lr(lr), args.lr), f'{rd.scaled_lr(lr):g}'" in line for line in found)


@pytest.mark.parametrize(
    ("define", "call", "shown"),
    [
        (
            "def decay(epoch):\n    lr = args.lr * 0.1 ** epoch\n    for group in optimizer.param_groups:\n"
            "        group['lr'] = lr\n    return lr\n",
            "lr = decay(1)",
            "lr",
        ),
        (
            "def rate_of(epoch):\n    return args.lr * 0.1 ** epoch\n\n\ndef decay(epoch):\n"
            "    for group in optimizer.param_groups:\n        group['lr'] = rate_of(epoch)\n",
            "decay(1)",
            "rate_of(1)",
        ),
        (
            "def rate_of(epoch):\n    return args.lr * 0.1 ** epoch\n\n\ndef decay(epoch):\n"
            "    lr = rate_of(epoch)\n    for group in optimizer.param_groups:\n        group['lr'] = lr\n",
            "decay(1)",
            "rate_of(1)",
        ),
        (
            "def rate_of(epoch):\n    return args.lr * 0.1 ** epoch\n",
            "optimizer = SGD(model.parameters(), lr=rate_of(1))",
            "rate_of(1)",
        ),
        (
            "def decay(epoch):\n    lr = args.lr * 0.1 ** epoch\n    for group in optimizer.param_groups:\n"
            "        group['lr'] = lr\n",
            "epoch = 1\ndecay(epoch)",
            "args.lr * 0.1 ** epoch",
        ),
    ],
)
def test_a_rate_logged_by_another_function_is_the_one_in_use(
    define: str, call: str, shown: str, tmp_path: Path
) -> None:
    script = (
        f"{HEAD}{define}\n\noptimizer = SGD(model.parameters(), lr=args.lr)\n{call}\nprint('rate', {shown})\n{TRAIN}"
    )
    assert f"print('rate', rd.scaled_lr({shown}))" in converted(tmp_path, script)


NOTED = """\
def decay(epoch):
    lr = args.lr * 0.1 ** epoch
    for group in optimizer.param_groups:
        group['lr'] = lr
    return lr


def note(epoch, rate=0.0):
    with open('log.txt', 'a') as log:
        log.write('%d %g' % (epoch, float(rate)))


"""
SHOW = """\
def show(rate, epoch):
    note(epoch, rate=rate)


"""


@pytest.mark.parametrize(
    ("calls", "is_shown"),
    [
        (["note(1, lr)"], True),
        (["note(1, rate=lr)"], True),
        (["show(lr, 1)"], True),
        (["note(1, lr)", "note(2, lr)"], True),
        (["note(1, lr)", "note(2, optimizer.param_groups[0]['lr'])"], False),
        (["note(1, args.lr)"], False),
    ],
)
def test_a_rate_that_functions_are_given_is_shown_as_it_is_used(
    calls: list[str], is_shown: bool, tmp_path: Path
) -> None:
    lines = "\n".join(["lr = decay(1)", *calls])
    show = SHOW if "show" in calls[0] else ""
    script = f"{HEAD}{NOTED}{show}optimizer = SGD(model.parameters(), lr=args.lr)\n{lines}\n{TRAIN}"
    text = "\n".join(converted(tmp_path, script))
    assert ("log.write('%d %g' % (epoch, float(rd.scaled_lr(rate))))" in text) == is_shown


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("load('c.cfg')['lr']", "group['lr'] = rd.scaled_lr(lr)"),
        ("load('c.cfg')['training']['lr']", "group['lr'] = rd.scaled_lr(lr)"),
        ("optimizer.param_groups[0]['lr']", "group['lr'] = lr\n"),
        ("optimizer.state_dict()['param_groups'][0]['lr']", "group['lr'] = lr\n"),
        ("optimizer.defaults['lr']", "group['lr'] = lr\n"),
    ],
)
def test_only_the_rate_of_an_optimizer_is_scaled_already(setting: str, expected: str, tmp_path: Path) -> None:
    adjust = (
        "def adjust(optimizer, epoch, base):\n    lr = base * 0.1 ** epoch\n"
        "    for group in optimizer.param_groups:\n        group['lr'] = lr\n\n\n"
    )
    text = f"from configured import load\n{HEAD}{adjust}optimizer = SGD(model.parameters(), lr=args.lr)\n"
    text += f"for epoch in range(2):\n    adjust(optimizer, epoch, {setting})\n"
    text += "".join(f"    {line}\n" for line in TRAIN.splitlines())
    assert expected in "\n".join(converted(tmp_path, text)) + "\n"


BY_HAND = """\
def adjust(optimizer, epoch, lr=None, factor=0.1):
    if epoch == 1:
        rates = {1: args.lr * factor, 2: 0.01}
    else:
        rates = {epoch: lr if lr is not None else scheduler.get_last_lr()[0]}
    for group in optimizer.param_groups:
        group["lr"] = rates[epoch]


optimizer = SGD(model.parameters(), args.lr)
scheduler = optim.lr_scheduler.StepLR(optimizer, 1)
"""


def test_the_computed_rate_of_a_summed_loss_is_shown_as_it_is(tmp_path: Path) -> None:
    define = "def rate_of(epoch):\n    return args.lr * 0.1 ** epoch\n\n\n"
    train = TRAIN.replace(".mean()", ".sum()")
    assert train != TRAIN
    script = f"{HEAD}{define}optimizer = SGD(model.parameters(), lr=rate_of(1))\nprint('rate', rate_of(1))\n{train}"
    assert "print('rate', rate_of(1))" in converted(tmp_path, script)


def test_a_rate_that_follows_the_optimizer_on_some_ways_is_scaled_on_the_others(tmp_path: Path) -> None:
    lines = converted(tmp_path, HEAD + BY_HAND + "adjust(optimizer, 0, 0.03)\n" + TRAIN)
    assert "rates = {1: rd.scaled_lr(args.lr * factor), 2: rd.scaled_lr(0.01)}" in lines
    assert "adjust(optimizer, 0, rd.scaled_lr(0.03))" in lines
    assert 'group["lr"] = rates[epoch]' in lines
    assert "rates = {epoch: lr if lr is not None else scheduler.get_last_lr()[0]}" in lines


def test_a_rate_that_is_written_elsewhere_on_some_ways_is_listed(tmp_path: Path) -> None:
    result = conversion(tmp_path, HEAD + BY_HAND + "last = 0.03\nadjust(optimizer, 0, last)\n" + TRAIN)
    left = [f for f in result.findings if "on some ways" in f.message and not f.edits]
    assert len(left) == 1, result.findings


def test_a_rate_that_two_names_get_at_once_is_scaled(tmp_path: Path) -> None:
    lines = "optimizer = SGD(model.parameters(), args.lr)\nrates = [args.lr * 0.5**n for n in range(9)]\n"
    lines += 'for group in optimizer.param_groups:\n    lr = group["lr"] = rates[2]\n'
    assert 'lr = group["lr"] = rd.scaled_lr(rates[2])' in converted(tmp_path, HEAD + lines + TRAIN)


def test_what_the_names_of_a_script_give_is_not_taken_for_an_optimizer(tmp_path: Path) -> None:
    lines = "optimizer = SGD(model.parameters(), args.lr)\nsquare = lambda x: x**2\nu = vars()[args.opt]\n"
    result = converted(tmp_path, HEAD + lines + TRAIN.replace("model(x).pow(2)", "u(model(x))"))
    assert "u(model(x)).mean().backward()" in result


DECAY = """\
optimizer = SGD(model.parameters(), lr=args.lr)
for epoch in range(3):
    for group in optimizer.param_groups:
        CHANGE
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ('group["lr"] -= args.lr / 3', 'group["lr"] -= rd.scaled_lr(args.lr / 3)'),
        ('group["lr"] += 0.01', 'group["lr"] += rd.scaled_lr(0.01)'),
        ('group["lr"] = group["lr"] - args.lr / 3', 'group["lr"] = group["lr"] - rd.scaled_lr(args.lr / 3)'),
        ('group["lr"] = max(group["lr"] - 0.01, 1e-6)', None),
        ('group["lr"] = max(0.5 * group["lr"], 1e-6)', 'group["lr"] = max(0.5 * group["lr"], rd.scaled_lr(1e-6))'),
        ('group["lr"] -= group["initial_lr"] / 3', 'group["lr"] -= group["initial_lr"] / 3'),
        ('group["lr"] = max(group["lr"] * 0.9, 0)', 'group["lr"] = max(group["lr"] * 0.9, 0)'),
        ('group["lr"] *= 0.9', 'group["lr"] *= 0.9'),
    ],
)
def test_what_is_added_to_a_rate_follows_the_batch(tmp_path: Path, change: str, changed: str | None) -> None:
    lines = converted(tmp_path, HEAD + DECAY.replace("CHANGE", change))
    both = 'group["lr"] = max(group["lr"] - rd.scaled_lr(0.01), rd.scaled_lr(1e-6))'
    assert (changed or both) in lines


SAVED = "torch.save({'rate': optimizer.param_groups[0]['lr'], 'steps': args.opt}, 'x.pt')\n"
MADE = "optimizer = SGD(model.parameters(), lr=rate)\n"


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("rate = torch.load('x.pt')['rate']\n", "rate"),
        ("state = torch.load('x.pt')\nrate = state.get('rate', 0) * 0.1\n", "rate"),
        ("rate = torch.load('x.pt')['optimizer']['param_groups'][0]['lr']\n", "rate"),
        ("rate = torch.load('x.pt')['steps']\n", "rd.scaled_lr(rate)"),
        ("rate = json.load(open('settings.json'))['rate']\n", "rd.scaled_lr(rate)"),
        (
            "class Settings:\n    def get_lr(self):\n        return args.lr\nrate = Settings().get_lr()\n",
            "rd.scaled_lr(rate)",
        ),
    ],
)
def test_a_rate_of_a_checkpoint_is_scaled_once(before: str, expected: str, tmp_path: Path) -> None:
    assert MADE.replace("lr=rate", f"lr={expected}").strip() in converted(
        tmp_path, HEAD + before + MADE + TRAIN + SAVED
    )


@pytest.mark.parametrize("loaded", ["state['rate']", "state['optimizer']['param_groups'][0]['lr']"])
def test_the_setting_is_scaled_where_a_checkpoint_may_have_the_rate(loaded: str, tmp_path: Path) -> None:
    before = f"rate = args.lr\nif args.opt == 'again':\n    state = torch.load('x.pt')\n    rate = {loaded}\n"
    lines = converted(tmp_path, HEAD + before + MADE + TRAIN + SAVED)
    assert {"rate = rd.scaled_lr(args.lr)", f"rate = {loaded}", MADE.strip()} <= set(lines)


def test_the_rates_of_a_schedule_of_the_script_are_scaled(tmp_path: Path) -> None:
    schedule = (
        "class Decay:\n    def get_lr(self, epoch):\n        return args.lr * 0.9**epoch\n\n\ndecay = Decay()\n"
        "for group in optimizer.param_groups:\n    group['lr'] = decay.get_lr(3)\n"
    )
    lines = converted(tmp_path, HEAD + "rate = args.lr\n" + MADE + schedule + TRAIN)
    assert "group['lr'] = rd.scaled_lr(decay.get_lr(3))" in lines
