"""Which loader is shared out, and where, when no variable simply holds it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from convert.conversion import conversion, converted

HEAD = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
dataset = TensorDataset(torch.randn(16, 3))
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
STEP = """\
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
"""


LOOP = "for (x,) in loader:\n" + STEP


def test_a_loader_kept_only_as_its_iterator(tmp_path: Path) -> None:
    script = HEAD + (
        "batches = iter(DataLoader(dataset, batch_size=4, sampler=Endless(dataset)))\n"
        "for step in range(9):\n"
        "    (x,) = next(batches)\n" + STEP
    )
    assert (
        "batches = iter(rd.distribute_loader(DataLoader(dataset, batch_size=4, sampler=Endless(dataset))))"
        in converted(tmp_path, script)
    )


def test_all_processes_skip_the_same_batches(tmp_path: Path) -> None:
    skipping = "    if x.size(0) != batch_size:\n        continue\n"
    script = HEAD + (
        "batch_size = 4\n"
        "loader = DataLoader(dataset, batch_size, shuffle=True)\n"
        "for (x,) in loader:\n" + skipping + STEP
    )
    assert "if rd.collectives.on_any_rank(x.size(0) != rd.data.micro_batch(batch_size)):" in converted(tmp_path, script)


@pytest.mark.parametrize(
    ("target", "counts"), [("pack_padded_sequence(x[:, 0].long(), [1, 1])[0]", True), ("x[:, 0].long()", False)]
)
def test_a_mean_over_sequences_of_several_lengths_is_taken_over_all_processes(
    target: str, counts: bool, tmp_path: Path
) -> None:
    script = HEAD + (
        "from torch.nn.utils.rnn import pack_padded_sequence\n"
        "criterion = torch.nn.CrossEntropyLoss()\n"
        "loader = DataLoader(dataset, 4, shuffle=True)\n"
        "for (x,) in loader:\n"
        f"    targets = {target}\n" + STEP.replace("model(x).pow(2).mean()", "criterion(model(x), targets)")
    )
    wrapped = "criterion = rd.loss.distribute_criterion(torch.nn.CrossEntropyLoss())"
    assert (wrapped in converted(tmp_path, script)) is counts


def test_a_layer_from_another_file_that_is_part_of_a_model_is_not_wrapped_too(tmp_path: Path) -> None:
    parts = """\
from torch import nn

decoder = nn.Sequential(nn.Linear(3, 3))


class Whole(nn.Module):
    def __init__(self, decoder):
        super().__init__()
        self.decoder = decoder

    def forward(self, x):
        return self.decoder(x)
"""
    script = HEAD.replace("import torch\n", "import parts\nimport torch\n").replace(
        "torch.nn.Linear(3, 1)", "parts.Whole(parts.decoder)"
    )
    script = script.replace("model.parameters()", "model.decoder.parameters()")
    script += "loader = DataLoader(dataset, 4, shuffle=True)\nfor (x,) in loader:\n" + STEP
    result = conversion(tmp_path, script, parts=parts)
    assert not result.refusals
    (file,) = result.files
    assert file.path.name == "train.py"
    assert "\nmodel = rd.distribute_model(model)\n" in file.text


PREFETCHER = """\
class Prefetcher:
    def __init__(self, loader):
        self.loader = loader
        self.reset()

    def preload(self):
        try:
            self.batch = next(self.batches)
        except StopIteration:
            self.batch = None

    def next(self):
        batch = self.batch
        self.preload()
        return batch

    def reset(self):
        self.batches = iter(self.loader)
        self.preload()


def losses(source):
    source.reset()
    found, batch = [], source.next()
    while batch is not None:
        found.append(model(batch[0]).pow(2).mean().item())
        batch = source.next()
    return found


"""


def test_a_class_that_prefetches_for_training_and_for_evaluation(tmp_path: Path) -> None:
    script = HEAD + PREFETCHER + (
        "train_loader = DataLoader(dataset, batch_size=4, shuffle=True)\n"
        "test_loader = DataLoader(dataset, batch_size=4)\n"
        "train_source, test_source = Prefetcher(train_loader), Prefetcher(test_loader)\n"
        "for epoch in range(2):\n"
        "    train_source.reset()\n"
        "    batch = train_source.next()\n"
        "    while batch is not None:\n"
        "        (x,) = batch\n" + STEP.replace("    ", "        ") + "        batch = train_source.next()\n"
        "    with torch.no_grad():\n"
        "        print(losses(test_source))\n"
    )  # fmt: skip
    text = converted(tmp_path, script)
    assert "train_loader = rd.distribute_loader(train_loader)" in text
    assert sum("distribute_loader" in line for line in text) == 1


def test_a_prefetcher_that_is_made_in_each_pass(tmp_path: Path) -> None:
    """It draws its first batch when it is made: of the loader that it is given there."""
    script = HEAD + (
        PREFETCHER.replace("losses(source)", "losses(loader)").replace("source.reset()", "source = Prefetcher(loader)")
        + "train_loader = DataLoader(dataset, batch_size=4, shuffle=True)\n"
        "test_loader = DataLoader(dataset, batch_size=4)\n"
        "for epoch in range(2):\n"
        "    source = Prefetcher(train_loader)\n"
        "    batch = source.next()\n"
        "    while batch is not None:\n"
        "        (x,) = batch\n" + STEP.replace("    ", "        ") + "        batch = source.next()\n"
        "    with torch.no_grad():\n"
        "        print(losses(test_loader))\n"
    )  # fmt: skip
    text = converted(tmp_path, script)
    assert "train_loader = rd.distribute_loader(train_loader)" in text
    assert sum("distribute_loader" in line for line in text) == 1


def test_a_training_loader_that_also_shows_samples(tmp_path: Path) -> None:
    script = HEAD + (
        "loader = DataLoader(dataset, batch_size=4, shuffle=True)\n"
        "def show(row):\n"
        "    for value in row:\n"
        "        print(model(value))\n"
        "for epoch in range(2):\n"
        "    for (x,) in loader:\n" + STEP.replace("    ", "        ") + "        show(x[0])\n"
        "    for (x,) in loader:\n"
        "        print(model(x[:1]))\n"
        "        break\n"
    )  # fmt: skip
    text = converted(tmp_path, script)
    assert "loader = rd.distribute_loader(loader)" in text
    assert sum("distribute_loader" in line for line in text) == 1
    first, second = (line for line in text if line.startswith("for (x,)"))
    assert "same_batches" not in first and second == "for (x,) in rd.evaluation.same_batches(loader):"


def test_a_trainer_whose_method_draws_the_next_batch(tmp_path: Path) -> None:
    script = HEAD + (
        "class Trainer:\n"
        "    def __init__(self, train_loader, test_loader):\n"
        "        self.train_loader, self.test_loader = train_loader, test_loader\n"
        "        self.batches = iter(train_loader)\n\n"
        "    def next_batch(self):\n"
        "        try:\n"
        "            return next(self.batches)\n"
        "        except StopIteration:\n"
        "            self.batches = iter(self.train_loader)\n"
        "            return next(self.batches)\n\n"
        "    def run(self):\n"
        "        for step in range(9):\n"
        "            self.step()\n\n"
        "    def step(self):\n"
        "        (x,) = self.next_batch()\n" + STEP.replace("    ", "        ") + "\n"
        "train_loader = DataLoader(dataset, batch_size=4, shuffle=True)\n"
        "test_loader = DataLoader(dataset, batch_size=4)\n"
        "Trainer(train_loader, test_loader).run()\n"
    )
    text = converted(tmp_path, script)
    assert "train_loader = rd.distribute_loader(train_loader)" in text
    assert sum("distribute_loader" in line for line in text) == 1


def test_the_import_comes_before_its_first_use(tmp_path: Path) -> None:
    lines = converted(tmp_path, HEAD + "import elsewhere\nloader = DataLoader(dataset, 4)\n" + LOOP)
    assert lines.index("import multigpu as rd") < lines.index("rd.setup_distributed()")


def test_a_progress_bar_with_an_unknown_name_ends_the_search(tmp_path: Path) -> None:
    script = HEAD + "from tqdm import tqdm\nfrom elsewhere import batches\nbatches = tqdm(batches)\n"
    (refusal,) = conversion(tmp_path, script + LOOP.replace("loader", "batches")).refusals
    assert "no DataLoader is found" in str(refusal.refusal)


def test_a_loader_built_in_each_epoch_gets_the_epoch_there(tmp_path: Path) -> None:
    script = HEAD + (
        "start = torch.load('last.pt')\n"
        "for epoch in range(start, 3):\n"
        "    print(epoch)\n"
        "    loader = DataLoader(dataset, 4, shuffle=True)\n"
        "    for (x,) in loader:\n" + "".join(f"    {line}\n" for line in STEP.splitlines())
    )
    lines = converted(tmp_path, script)
    first, second = lines.index("loader = rd.distribute_loader(loader)"), lines.index("rd.set_epoch(loader, epoch)")
    assert first < second < lines.index("for (x,) in loader:")


NEW = "DataLoader(dataset, batch_size=4, shuffle=True)"
SHARED = f"rd.distribute_loader({NEW})"
ENDLESS = f"""\
def batches_of(dataset):
    loader = {NEW}
    loader = iter(loader)
    while True:
        try:
            yield next(loader)
        except StopIteration:
            loader = {NEW}
            loader = iter(loader)
            yield next(loader)


batches = batches_of(dataset)
for step in range(9):
    (x,) = next(batches)
"""


def in_epochs(*before: str, after: str = "pass") -> str:
    loop = "".join(f"    {line}\n" for line in (*before, *LOOP.splitlines(), after))
    return f"for epoch in range(3):\n{loop}"


def test_a_generator_that_makes_its_loader_again(tmp_path: Path) -> None:
    lines = converted(tmp_path, HEAD + ENDLESS + STEP)
    assert lines.count(f"loader = {SHARED}") == 2
    assert "loader = rd.distribute_loader(loader)" not in lines, "nothing comes after an endless loop"


@pytest.mark.parametrize("made", [NEW, "make(4)"])
@pytest.mark.parametrize("place", ["at the end of an epoch", "at the start of one"])
def test_a_loader_that_is_made_again_between_epochs(tmp_path: Path, made: str, place: str) -> None:
    function = "def make(size):\n    return DataLoader(dataset, batch_size=size)\n\n\n"
    again = f"loader = {made}"
    epochs = in_epochs(after=again) if "end" in place else in_epochs("if epoch == 2:", f"    {again}")
    lines = converted(tmp_path, f"{HEAD}{function}loader = {made}\n{epochs}")
    assert lines.count(f"loader = rd.distribute_loader({made})") == 2


def test_a_loader_that_is_made_again_with_another_one(tmp_path: Path) -> None:
    function = f"def pair():\n    return {NEW}, DataLoader(dataset, batch_size=4)\n\n\n"
    script = f"{HEAD}{function}loader, other = pair()\n{in_epochs('if epoch == 2:', '    loader, other = pair()')}"
    assert converted(tmp_path, script).count("loader = rd.distribute_loader(loader)") == 2


def test_a_loader_that_two_methods_make(tmp_path: Path) -> None:
    trainer = f"""\
class Trainer:
    def __init__(self):
        self.loader = {NEW}

    def restart(self):
        self.loader = {NEW}

    def run(self):
        for epoch in range(3):
            for (x,) in self.loader:
                optimizer.zero_grad()
                model(x).pow(2).mean().backward()
                optimizer.step()
            self.restart()


Trainer().run()
"""
    assert converted(tmp_path, HEAD + trainer).count(f"self.loader = {SHARED}") == 2


def test_a_loader_that_is_only_chosen_again_is_refused(tmp_path: Path) -> None:
    script = f"{HEAD}loader = {NEW}\n{in_epochs(f'loader = loader if epoch < 2 else {NEW}')}"
    (refused,) = conversion(tmp_path, script).refusals
    assert "several places" in refused.refusal


def test_the_name_of_a_loader_may_be_that_of_a_later_evaluation(tmp_path: Path) -> None:
    after = "loader = DataLoader(dataset, batch_size=4)\nwith torch.no_grad():\n    model.eval()\n"
    after += "    print([model(x) for (x,) in loader])\n"
    lines = converted(tmp_path, f"{HEAD}loader = {NEW}\n{in_epochs()}{after}")
    assert lines.count("loader = rd.distribute_loader(loader)") == 1
    assert "loader = DataLoader(dataset, batch_size=4)" in lines


def test_a_loader_that_an_option_adds_to_a_dict_is_sharded_where_it_is_made(tmp_path: Path) -> None:
    script = """\
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
loaders = {x: DataLoader(data, batch_size=8, shuffle=True) for x in ["train", "val"]}
more = "--more" in sys.argv
if more:
    loaders["more"] = DataLoader(data, batch_size=4, shuffle=True)
    batches = enumerate(loaders["more"])
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loaders["train"]:
    optimizer.zero_grad()
    loss = (model(x) - y).pow(2).mean()
    if more:
        _, (x, y) = next(batches)
        loss = loss + (model(x) - y).pow(2).mean()
    loss.backward()
    optimizer.step()
"""
    lines = converted(tmp_path, script)
    assert 'loaders["more"] = rd.distribute_loader(DataLoader(data, batch_size=4, shuffle=True))' in lines
    assert sum("distribute_loader" in line for line in lines) == 2


def test_an_entry_of_a_dict_in_an_attribute_is_sharded(tmp_path: Path) -> None:
    script = """\
import torch
from torch.utils.data import DataLoader


class Trainer:
    def __init__(self, sets):
        self.loaders = {name: DataLoader(sets[name], batch_size=4) for name in ["train", "val"]}
        self.model = torch.nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def fit(self):
        for phase in ["train", "val"]:
            for x, y in self.loaders[phase]:
                with torch.set_grad_enabled(phase == "train"):
                    loss = torch.nn.functional.cross_entropy(self.model(x), y)
                    if phase == "train":
                        loss.backward()
                        self.optimizer.step()


Trainer({}).fit()
"""
    line = "self.loaders['train'] = rd.distribute_loader(self.loaders['train'])"
    assert line in converted(tmp_path, script)


def test_an_entry_that_dict_is_given_by_its_name_is_sharded_alone(tmp_path: Path) -> None:
    script = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(9, 3), torch.randn(9, 1))
loaders = dict(train=DataLoader(data, 4), val=DataLoader(data, 3))
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for mode in ("train", "val"):
    for x, y in loaders[mode]:
        loss = torch.nn.functional.mse_loss(model(x), y)
        if mode == "train":
            loss.backward()
            optimizer.step()
"""
    line = "loaders = dict(train=rd.distribute_loader(DataLoader(data, 4)), val=DataLoader(data, 3))"
    assert line in converted(tmp_path, script)


OWN_BATCHES = """\
class Batches:
    def __init__(self, rows, size):
        self.rows, self.size = rows, size

    def __len__(self):
        return len(self.rows) // self.size

    def __iter__(self):
        order = torch.randperm(len(self.rows))
        for number in range(len(self)):
            yield (self.rows[order[number * self.size : (number + 1) * self.size]],)


rows = torch.randn(16, 3)
"""


@pytest.mark.parametrize("filled", ["loader.rows = rows * 2", "loader.size = 2", "loader.rows, loader.size = rows, 2"])
def test_what_a_branch_changes_in_own_batches_is_not_where_they_are_made(tmp_path: Path, filled: str) -> None:
    body = f"loader = Batches(rows, 4)\nif run == 'warmup':\n    {filled}\nsteps = len(loader)\n" + LOOP
    script = HEAD + OWN_BATCHES + "def main(run):\n" + textwrap.indent(body, "    ") + "\n\nmain('warmup')\nmain(1)\n"
    (text,) = (file.text for file in conversion(tmp_path, script).files if file.path.name == "train.py")
    assert text.count("rd.distribute_loader(") == 1
    assert "\n    loader = rd.distribute_loader(loader)\n" in text  # not in the branch


@pytest.mark.parametrize("container", ["{}", "dict()", "OrderedDict()"])
@pytest.mark.parametrize("over", ['name in ("train", "val")', "name in parts", "name, part in parts.items()"])
@pytest.mark.parametrize("is_attribute", [False, True])
def test_an_entry_that_a_loop_puts_into_a_dict(tmp_path: Path, container: str, over: str, is_attribute: bool) -> None:
    """It is there after the loop, and not once the dict is made."""
    script = (
        HEAD
        + f"""\
from collections import OrderedDict
parts = {{"train": dataset, "val": dataset}}
class Data:
    def __init__(self):
        loaders = {container}
        for {over}:
            loaders[name] = DataLoader(parts[name], batch_size=4, shuffle=name == "train")
        print("made")
    def fit(self):
        for (x,) in loaders["train"]:
{textwrap.indent(STEP, "        ")}
data = Data()
data.fit()
"""
    )
    lines = converted(tmp_path, script.replace("loaders", "self.loaders") if is_attribute else _flat(script))
    name = "self.loaders" if is_attribute else "loaders"
    assert lines.index('print("made")') == lines.index(f"{name}['train'] = rd.distribute_loader({name}['train'])") + 1


def _flat(script: str) -> str:
    """Return a script without its class: the bodies of the methods, one after the other."""
    before, _, rest = script.partition("class Data:\n")
    body = "".join(line for line in rest.splitlines(True) if not line.startswith(("    def", "data")))
    return before + textwrap.dedent(body)
