"""The loader inside what hands on its batches: conditional bars, generators, iterators, classes, containers."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

SCRIPT = """\
import collections
import itertools
from dataclasses import dataclass

import elsewhere
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

torch.manual_seed(0)
data = TensorDataset(torch.randn(16, 3))
bar = len("bar") > 2
model = nn.Linear(3, 1)
optimizer = optim.SGD(model.parameters(), lr=0.1)


def cycle(loader):
    while True:
        for batch in loader:
            yield batch


def forever(n):
    loader = DataLoader(data, n, shuffle=True)
    while True:
        yield from loader


def step_of(batches, loader):
    try:
        batch = next(batches)
    except StopIteration:
        batches = iter(loader)
        batch = next(batches)
    return batch, batches


class Log:
    def __init__(self):
        self.meters = {}

    def log_every(self, iterable, freq):
        for i, batch in enumerate(iterable):
            yield batch
            for meter in self.meters:
                print(meter, i % freq)


class Fast:
    def __init__(self, loader, half=False):
        self.loader = loader
        self.half = half

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        for batch in self.loader:
            yield batch


class Endless:
    def __init__(self, loader):
        self.loader = loader
        self.batches = iter(loader)

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return next(self.batches)
        except StopIteration:
            self.batches = iter(self.loader)
            return next(self.batches)


@dataclass
class Loaders:
    train: DataLoader
    test: DataLoader


Pair = collections.namedtuple("Pair", "train test")


def fast_loader(n, fast):
    loader = DataLoader(data, n, shuffle=True)
    if fast:
        loader = Fast(loader)
    return loader


"""
STEP = """\
optimizer.zero_grad()
model(x).pow(2).mean().backward()
optimizer.step()
"""
LOADER = "loader = DataLoader(data, 4, shuffle=True)\n"
SHARDED = "loader = rd.distribute_loader(loader)"
MADE = "DataLoader(data, 4, shuffle=True)"
# What is in front of the loop, the loop, and the line that is to be there.
VIEWS = {
    "a bar on demand": (LOADER + "batches = tqdm(loader) if bar else loader", "for (x,) in batches", SHARDED),
    "a bar under the same name": (LOADER + "if bar:\n    loader = tqdm(loader)", "for (x,) in loader", SHARDED),
    "a generator expression": (LOADER, "for x in (x * 2 for (x,) in loader)", SHARDED),
    "map": (LOADER, "for x in map(lambda batch: batch[0], loader)", SHARDED),
    "a chain": (LOADER, "for (x,) in itertools.chain(loader, loader)", SHARDED),
    "log_every": (LOADER, "for (x,) in Log().log_every(loader, 2)", SHARDED),
    "a generator that makes its loader": ("batches = forever(4)", "for _, (x,) in zip(range(9), batches)", SHARDED),
    "a class around it": (LOADER + "batches = Fast(loader, half=True)", "for (x,) in batches", SHARDED),
    "a class under the same name": (LOADER + "loader = Fast(loader=loader)", "for (x,) in loader", SHARDED),
    "a class on demand": (LOADER + "batches = Fast(loader) if bar else loader", "for (x,) in batches", SHARDED),
    "a class around the call": (
        f"batches = Fast({MADE})",
        "for (x,) in batches",
        f"batches = Fast(rd.distribute_loader({MADE}))",
    ),
    "an endless iterator": (
        LOADER + "batches = Endless(loader)",
        "for step in range(9):\n    (x,) = next(batches)",
        SHARDED,
    ),
    "an iterator by its methods": (
        LOADER + "batches = loader.__iter__()",
        "for step in range(loader.__len__()):\n    (x,) = batches.__next__()",
        SHARDED,
    ),
    "an iterator that a function restarts": (
        LOADER + "batches = iter(loader)",
        "for step in range(9):\n    (x,), batches = step_of(batches, loader)",
        SHARDED,
    ),
    "iterators in a dict": (
        f"batches = {{}}\nfor name in 'ab':\n    batches[name] = iter({MADE})",
        "for name in batches:\n    (x,) = next(batches[name])",
        f"batches[name] = iter(rd.distribute_loader({MADE}))",
    ),
    "a dataclass": (
        f"loaders = Loaders(train={MADE}, test={MADE})",
        "for (x,) in loaders.train",
        f"loaders = Loaders(train=rd.distribute_loader({MADE}), test={MADE})",
    ),
    "a named tuple": (
        f"loaders = Pair({MADE}, {MADE})",
        "for (x,) in loaders.train",
        f"loaders = Pair(rd.distribute_loader({MADE}), {MADE})",
    ),
    "a factory that wraps on demand": ("loader = fast_loader(4, bar)", "for (x,) in loader", SHARDED),
    "a factory of a library": ("loader = elsewhere.create_loader(data)", "for (x,) in loader", SHARDED),
    "a library's wrapper": (
        f"batches = elsewhere.wrap({MADE})",
        "for (x,) in batches",
        f"batches = elsewhere.wrap(rd.distribute_loader({MADE}))",
    ),
}


def script(before: str, loop: str) -> str:
    head, _, body = loop.partition(":\n")
    return f"{SCRIPT}{before}\nwhile True:\n    {head}:\n" + indented(f"{body.strip()}\n{STEP}", 8)


def indented(text: str, width: int) -> str:
    return "".join(" " * width + line + "\n" for line in text.splitlines() if line)


@pytest.mark.parametrize("kind", VIEWS)
def test_the_loader_that_a_view_hands_on_is_sharded(tmp_path: Path, kind: str) -> None:
    before, loop, expected = VIEWS[kind]
    lines = converted(tmp_path, script(before, loop))
    assert expected in lines
    if before.startswith(LOADER):
        assert lines[lines.index(SHARDED) - 1] == LOADER.strip()


@pytest.mark.parametrize("loop", ["for (x,) in zip(loader, other)", "for (x,) in itertools.chain(loader, other)"])
def test_a_loader_of_a_library_next_to_another_one_is_sharded(tmp_path: Path, loop: str) -> None:
    lines = converted(tmp_path, script(LOADER + "other = elsewhere.FastLoader(data)", loop))
    assert SHARDED in lines and "other = rd.distribute_loader(other)" in lines


def test_a_second_training_loop_without_a_known_loader_is_refused(tmp_path: Path) -> None:
    """The first loop has its loader, the second would train on everything in every process."""
    text = script(LOADER, "for (x,) in loader") + "    for x in torch.randn(5, 4, 3):\n" + indented(STEP, 8)
    (refused,) = conversion(tmp_path, text).refusals
    assert "no DataLoader is found" in refused.refusal
    assert refused.place.line == len(text.splitlines()) - 1


@pytest.mark.parametrize("made", ["elsewhere.get(data)", "elsewhere.samples(data).batched(4)"])
def test_a_second_training_loop_over_what_a_library_gives_is_sharded(tmp_path: Path, made: str) -> None:
    text = script(LOADER, "for (x,) in loader") + f"    for x in {made}:\n" + indented(STEP, 8)
    lines = converted(tmp_path, text)
    assert SHARDED in lines and f"for x in rd.distribute_loader({made}):" in lines


@pytest.mark.parametrize(
    "before, loop",
    [
        ("stream = iter(elsewhere.samples(data))", "for (x,) in loader:\nx = x + next(stream)"),
        ("stream = elsewhere.samples(data)", "for (x,) in loader:\nx = x + next(iter(stream))"),
        ("stream = elsewhere.samples(data)", "for (x,), u in zip(loader, stream):\nx = x + u"),
    ],
)
def test_samples_of_a_library_next_to_a_loader_are_refused(tmp_path: Path, before: str, loop: str) -> None:
    (refused,) = conversion(tmp_path, script(LOADER + before, loop)).refusals
    assert "gives every process the same samples" in refused.refusal


@pytest.mark.parametrize(
    "loop",
    [
        "for (x,) in loader:\nx = x.to(next(model.parameters()).device)",
        "for (x,) in loader:\nx = x + next(numbers)",
        "for (x,), _ in zip(loader, tqdm(range(9))):\npass",
        "for (x,), name in zip(loader, names):\npass",
    ],
)
def test_iterators_of_no_samples_are_not_refused(tmp_path: Path, loop: str) -> None:
    lines = converted(tmp_path, script(LOADER + "numbers, names = itertools.count(), list('abcdef')", loop))
    assert SHARDED in lines


def test_a_loader_that_only_evaluates_is_not_sharded_with_one_that_trains(tmp_path: Path) -> None:
    text = SCRIPT + (
        "def run(batches, train):\n"
        "    for (x,) in batches:\n"
        "        loss = model(x).pow(2).mean()\n"
        "        if train:\n"
        "            optimizer.zero_grad()\n"
        "            loss.backward()\n"
        "            optimizer.step()\n\n\n" + LOADER + f"test_loader = {MADE}\n"
        "while True:\n"
        "    run(Fast(loader), train=True)\n"
        "    run(Fast(test_loader), train=False)\n"
    )
    lines = converted(tmp_path, text)
    assert SHARDED in lines and not any("distribute_loader(test_loader)" in line for line in lines)


PHASES = {
    "a text": ("phase == 'train'", "'train'", "'val'"),
    "the text first": ("'train' == phase", "'train'", "'val'"),
    "one of several": ("phase in ('fit', 'train')", "'train'", "'val'"),
    "not one of several": ("phase not in ['val', 'test']", "'train'", "'val'"),
    "a member of an enumeration": ("phase == Phase.TRAIN", "Phase.TRAIN", "Phase.VAL"),
    "another member": ("phase is not Phase.VAL", "Phase.TRAIN", "Phase.VAL"),
}


@pytest.mark.parametrize("form", PHASES)
def test_a_function_that_trains_in_one_phase_only_leaves_the_other_loader_whole(tmp_path: Path, form: str) -> None:
    trains, first, second = PHASES[form]
    text = SCRIPT + (
        "class Phase(enum.Enum):\n"
        "    TRAIN, VAL = 0, 1\n\n\n"
        "def get_run(model):\n"
        "    def run(phase, batches):\n"
        "        best = 1e9\n"
        "        for (x,) in batches:\n"
        "            loss = model(x).pow(2).mean()\n"
        f"            if {trains}:\n"
        "                optimizer.zero_grad()\n"
        "                loss.backward()\n"
        "                optimizer.step()\n"
        f"            if {trains}:\n"
        "                print('loss', loss.item())\n"
        "            elif loss.item() < best:\n"
        "                best = min(loss.item(), best)\n"
        "        return best\n\n"
        "    return run\n\n\n" + LOADER + f"test_loader = {MADE}\n"
        "run = get_run(model)\n"
        "for epoch in range(2):\n"
        f"    run({first}, loader)\n"
        f"    print(run(phase={second}, batches=test_loader))\n"
    )
    lines = converted(tmp_path, text.replace("import elsewhere", "import enum\n\nimport elsewhere"))
    assert SHARDED in lines and not any("distribute_loader(test_loader)" in line for line in lines)
    assert "print('loss', rd.reduce_loss(loss).item())" in lines


WHOLE_FROM = {
    "at once": f"{LOADER}whole = next(iter(loader))",
    "by an iterator": f"{LOADER}batches = iter(loader)\nwhole = next(batches)",
    "with more": f"{LOADER}whole, size = next(iter(loader)), 4",
    "where the loader is made": f"whole = next(iter({MADE}))",
}


@pytest.mark.parametrize("drawn", WHOLE_FROM)
@pytest.mark.parametrize("loop", ["for x in whole", "for i, x in enumerate(whole)"])
def test_the_samples_of_one_batch_drawn_before_the_loops_are_not_loaded_again(
    tmp_path: Path, drawn: str, loop: str
) -> None:
    """A share of the whole series would be other data than the series: windows over time are torn."""
    (refused,) = conversion(tmp_path, script(WHOLE_FROM[drawn], loop)).refusals
    assert "no DataLoader is found" in refused.refusal


@pytest.mark.parametrize("drawn", WHOLE_FROM)
def test_a_loader_of_one_batch_drawn_before_the_loops_stays_whole(tmp_path: Path, drawn: str) -> None:
    made = "DataLoader(torch.stack([part[0] for part in whole]), 2)"
    lines = converted(tmp_path, script(WHOLE_FROM[drawn], f"for x in {made}"))
    assert f"for x in rd.distribute_loader({made}):" in lines and SHARDED not in lines


FETCHER = """\
import argparse
import types


class Fetcher:
    def __init__(self, loader):
        self.loader = loader

    def __next__(self):
        try:
            return next(self.batches)
        except (AttributeError, StopIteration):
            self.batches = iter(self.loader)
            return next(self.batches)


def make(size):
    return DataLoader(data, size, shuffle=True)


def train(loaders):
    fetcher = Fetcher(loaders.train)
    for step in range(10):
        (x,) = next(fetcher)
STEP

"""


@pytest.mark.parametrize("holder", ["types.SimpleNamespace", "argparse.Namespace"])
def test_a_loader_in_a_namespace_that_a_fetcher_holds_is_sharded(tmp_path: Path, holder: str) -> None:
    text = FETCHER.replace("STEP\n", indented(STEP, 8))
    made = f"loaders = {holder}(train=make(4), test=make(2))"
    lines = converted(tmp_path, f"{SCRIPT}{text}\n{made}\ntrain(loaders)\n")
    assert f"loaders = {holder}(train=rd.distribute_loader(make(4)), test=make(2))" in lines


OWN = """\
class Batches:
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return 16 // self.size

    def __iter__(self):
        order = order_of(16)
        for i in range(len(self)):
            yield (data.tensors[0][pick(order, i)],)


loader = Batches(4)
"""


@pytest.mark.parametrize(
    "made",
    [
        "loader = BucketIterator(data, batch_size=4)",
        "loader, test_loader = BucketIterator.splits((data, data), batch_size=4)",
        "loader = torchtext.legacy.data.Iterator(data, batch_size=4)",
        OWN,
    ],
)
def test_what_gives_batches_and_holds_no_dataloader_is_sharded(tmp_path: Path, made: str) -> None:
    imports = "import torchtext\nfrom torchtext.data import BucketIterator\nfrom elsewhere import order_of, pick\n"
    lines = converted(tmp_path, script(imports + made, "for (x,) in loader"))
    assert "loader = rd.distribute_loader(loader)" in lines


GIVES = """\
class Source:
    def __init__(self):
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at >= 16:
            self.at = 0
            raise StopIteration
        self.at += 4
        return (pick(data, self.at),)


def batches_of(size):
    for rows in cut(data, size):
        yield (rows,)


def of_rows(rows, size):
    for i in range(0, len(rows), size):
        yield (pick(rows[i : i + size]),)


"""


@pytest.mark.parametrize(
    "before, loop, expected",
    [
        ("source = Source()", "for (x,) in source", "source = rd.distribute_loader(source)"),
        ("source = Source()", "for i, (x,) in enumerate(tqdm(source))", "source = rd.distribute_loader(source)"),
        ("", "for (x,) in batches_of(4)", "for (x,) in rd.distribute_loader(batches_of(4)):"),
        ("rows = [1, 2]", "for (x,) in of_rows(rows, 4)", "for (x,) in rd.distribute_loader(of_rows(rows, 4)):"),
        ("rows = Source()", "for (x,) in of_rows(rows, 4)", "for (x,) in rd.distribute_loader(of_rows(rows, 4)):"),
    ],
)
def test_an_object_or_a_generator_that_gives_batches_is_sharded(
    tmp_path: Path, before: str, loop: str, expected: str
) -> None:
    imports = "from tqdm import tqdm\nfrom elsewhere import cut, pick\n"
    assert any(expected in line for line in converted(tmp_path, script(imports + GIVES + before, loop)))


ROLLOUT = """\
import torch
from torch import nn
from games import game


class Storage:
    def __init__(self):
        self.states, self.actions = [], []

    def insert(self, state, action):
        self.states.append(state)
        self.actions.append(action)

    def batches(self, size):
        for rows in torch.randperm(len(self.states)).split(size):
            yield torch.stack([self.states[i] for i in rows]), torch.stack([self.actions[i] for i in rows])


policy = nn.Linear(4, 2)
optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
for update in range(9):
    storage, state = Storage(), game.start()
    for step in range(8):
        action = policy(state).argmax()
        storage.insert(state, action)
        state = game.move(action)
    for states, actions in storage.batches(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(policy(states), actions).backward()
        optimizer.step()
"""


def test_what_the_model_itself_has_filled_is_not_sharded(tmp_path: Path) -> None:
    assert any("no DataLoader is found" in finding.refusal for finding in conversion(tmp_path, ROLLOUT).refusals)
