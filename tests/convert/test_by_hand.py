"""The longer scripts for several processes, each with one change: a bug is found, a change that is sound is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrofit.rules.registry import find_hazards
from retrofit.training import read_project

BY_HAND = Path(__file__).parent / "by_hand"
SHARE = "DataLoader(torch.utils.data.Subset(val_set, range(get_rank(), 33, get_world_size())), 8)"
PADDED = "DataLoader(val_set, 8, sampler=DistributedSampler(val_set, shuffle=False))"
STEPS = "2 * (len(self.train_loader) // accum_steps)"
GENERATOR = ", generator=torch.Generator().manual_seed(0)"
DIVIDED = "    args.batch_size = int(args.batch_size / args.world_size)\n"
LOSS = "loss = criterion(model(images.to(device)), labels.to(device))\n"
REDUCED = "        dist.all_reduce(sums)\n"
SYNCHRONIZED = {"return meter": "meter.synchronize(device)\n    return meter"}
SEEDED_APART = {"manual_seed(0)\n": 'manual_seed(int(os.environ["RANK"]))\n'}
SUMMED = {"labels.to(device))\n": 'labels.to(device), reduction="sum")\n'}
# The code, the script, and what is replaced by what.
BUGS = [
    ("RF101", "trainer", {"        self.train_loader.sampler.set_epoch(epoch)\n": ""}),
    ("RF101", "optional", {"            train_sampler.set_epoch(epoch)\n": "            pass\n"}),
    ("RF101", "spawn", {"        sampler.set_epoch(epoch)\n": ""}),
    ("RF101", "main_worker", {"        train_sampler.set_epoch(epoch)\n": ""}),
    ("RF103", "trainer", {"sampler=DistributedSampler(dataset)": "shuffle=True"}),
    ("RF103", "trainer", {"=DistributedSampler(dataset)": "=DistributedSampler(dataset, seed=self.rank)"}),
    ("RF105", "optional", {"DataLoader(val_set, 8)": PADDED, **SYNCHRONIZED}),
    ("RF106", "optional", {"DataLoader(train_set, 8 // get_world_size(), sampler=train_sampler, drop_last=True)":
                           SHARE.replace("val_set", "train_set").replace("33", "len(train_set)")}),
    ("RF107", "main_worker", {DIVIDED: "", "args.lr, mom": "args.lr * args.batch_size / 256, mom"}),
    ("RF108", "trainer", {GENERATOR: "", **SEEDED_APART}),
    ("RF109", "main_worker", {"args.seed + args.rank": "args.seed"}),
    ("RF109", "main_worker", {"random.seed(args.seed + args.rank)\n        np": "random.seed(args.seed)\n        np"}),
    ("RF111", "trainer", {"DataLoader(share, batch_size=batch_size)": "DataLoader(share, batch_size, drop_last=True)"}),
    ("RF301", "spawn", {"loss.backward()": "(loss * world_size).backward()"}),
    ("RF301", "optional", {LOSS: LOSS + "        loss *= get_world_size()\n"}),
    ("RF302", "optional", {"label_smoothing=0.1": "ignore_index=-1"}),
    ("RF304", "spawn", {"batch_size=args.batch_size, s": "batch_size=args.batch_size // world_size, s"}),
    ("RF304", "optional", {"lr=0.1": "lr=0.1 * get_world_size()"}),
    ("RF304", "main_worker", {"args.lr, mom": "args.lr * args.world_size, mom"}),
    ("RF304", "main_worker", {"args.lr, mom": 'args.lr * int(os.environ["OMPI_COMM_WORLD_SIZE"]), mom'}),
    ("RF305", "trainer", {STEPS: "2 * (len(train_set) // batch_size // accum_steps)"}),
    ("RF305", "spawn", {"(args.batch_size * world_size)": "args.batch_size"}),
    ("RF401", "trainer", {REDUCED: ""}),
    ("RF401", "optional", {"DataLoader(val_set, 8)": SHARE}),
]  # fmt: skip
SOUND = [
    ("trainer", {"sampler=DistributedSampler(dataset)": "sampler=DistributedSampler(dataset, seed=7)"}),
    # A meter that adds up over the processes, and shares without padding.
    ("optional", {"DataLoader(val_set, 8)": SHARE, **SYNCHRONIZED}),
    # The sampler is told through the loader's batch sampler, or from where the loader is.
    ("optional", {"train_sampler.set_epoch": "train_loader.batch_sampler.sampler.set_epoch"}),
    ("spawn", {"sampler.set_epoch": "loader.sampler.set_epoch"}),
    # Neither the batch nor the rate knows of the processes: a larger global batch, which may be wanted.
    ("main_worker", {DIVIDED: ""}),
    # The rate goes by the batch of all processes, which is what the option gives.
    ("main_worker", {"args.lr, mom": "args.lr * args.batch_size * args.world_size / 256, mom"}),
    # A sum, with the factor that DDP's mean takes away again.
    ("spawn", {"loss.backward()": "(loss * world_size).backward()", **SUMMED}),
    # A schedule by epochs.
    ("spawn", {"T_max=total_steps": "T_max=args.epochs"}),
    # Samples change at random, by a stream that torch seeds apart in the workers of each process.
    ("main_worker", {"random.seed(args.seed + args.rank)\n        np": "random.seed(args.seed)\n        np",
                     'workers", default=0': 'workers", default=2'}),
    # Only what is printed is of one process, nothing goes by it.
    ("trainer", {REDUCED: "", "            if error < self.best:": "            if epoch == max_epochs:",
                 "error > 100 * self.best": "epoch > 100"}),
    # One process draws the split and hands it on.
    ("trainer", {GENERATOR: "", **SEEDED_APART,
                 "    train_set, val_set = ": "    if dist.get_rank() == 0:\n        train_set, val_set = "}),
]  # fmt: skip


def codes_in(script: str, changes: dict[str, str], folder: Path) -> set[str]:
    text = (BY_HAND / f"{script}.py").read_text()
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    (folder / "train.py").write_text(text)
    return {finding.code for finding in find_hazards(read_project(folder / "train.py"))}


@pytest.mark.parametrize(("code", "script", "changes"), BUGS)
def test_a_bug_is_found(code: str, script: str, changes: dict[str, str], tmp_path: Path) -> None:
    assert codes_in(script, changes, tmp_path) == {code}


@pytest.mark.parametrize(("script", "changes"), SOUND)
def test_nothing_is_found_in_a_sound_change(script: str, changes: dict[str, str], tmp_path: Path) -> None:
    assert codes_in(script, changes, tmp_path) == set()
