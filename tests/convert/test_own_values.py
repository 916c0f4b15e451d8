"""What each process makes in its own way: orders of sets of texts, generators and seeds that the system chooses."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

SCRIPT = """\
import argparse
import os
import random
import secrets
import time
from collections import Counter
from datetime import datetime

import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Vocabulary:
    def __init__(self):
        self.index = {}

    def add(self, word):
        self.index[word] = len(self.index)


torch.manual_seed(0)
text = "some words of a text"
MADE
loader = DataLoader(TensorDataset(torch.rand(32, 1)), 8, shuffle=True)
model = nn.Linear(1, 1)
optimizer = optim.SGD(model.parameters(), lr=1e-3)
for epoch in range(2):
    for (inputs,) in loader:
        optimizer.zero_grad()
        model(inputs).pow(2).mean().backward()
        optimizer.step()
"""
SHARED = "rd.share_random_state()"


@pytest.mark.parametrize(
    ("made", "line"),
    [
        ("chars = list(set(text))", "chars = rd.collectives.broadcast_object(list(set(text)))"),
        (
            "words = set(text.split())\nindex = {w: i for i, w in enumerate(words)}",
            "index = {w: i for i, w in enumerate(rd.collectives.broadcast_object(list(words)))}",
        ),
        (
            "index = {}\nfor word in {*text.split()}:\n    index[word] = len(index)",
            "for word in rd.collectives.broadcast_object(list({*text.split()})):",
        ),
        (
            "tags = {word[0] for word in text.split()} | {'<pad>'}\nnames = [tag for tag in tags]",
            "names = [tag for tag in rd.collectives.broadcast_object(list(tags))]",
        ),
        (
            "vocabulary = Vocabulary()\nfor word in set(text.split()):\n    vocabulary.add(word)",
            "for word in rd.collectives.broadcast_object(list(set(text.split()))):",
        ),
        (
            "index = {}\nfor word in set(text.split()):\n    index.update({word: len(index)})",
            "for word in rd.collectives.broadcast_object(list(set(text.split()))):",
        ),
        (
            "words = []\nfor word in set(text.split()):\n    words += [word]",
            "for word in rd.collectives.broadcast_object(list(set(text.split()))):",
        ),
        (
            "words = sorted(set(text.split()), key=len)",
            "words = sorted(rd.collectives.broadcast_object(list(set(text.split()))), key=len)",
        ),
        (
            "often = Counter()\noften.update(set(text.split()))",
            "often.update(rd.collectives.broadcast_object(list(set(text.split()))))",
        ),
        ("joined = ''.join(set(text))", "joined = ''.join(rd.collectives.broadcast_object(list(set(text))))"),
        (
            "words = set(text.split())\nwords = words - {'the'}\nimage = np.ones(3)\nimage = image - image\n"
            "names = list(words)",
            "names = rd.collectives.broadcast_object(list(words))",
        ),
        (
            "words = list(set(np.random.choice(text.split(), 2)))",
            "words = rd.collectives.broadcast_object(list(set(np.random.choice(text.split(), 2))))",
        ),
        ("rng = np.random.default_rng()", "rng = rd.collectives.broadcast_object(np.random.default_rng())"),
        ("rng = np.random.RandomState(None)", "rng = rd.collectives.broadcast_object(np.random.RandomState(None))"),
        ("rng = random.Random()", "rng = rd.collectives.broadcast_object(random.Random())"),
        (
            "rng = np.random.default_rng(int(time.time()))",
            "rng = np.random.default_rng(rd.collectives.broadcast_object(int(time.time())))",
        ),
        (
            "seed = os.getpid()\nrng = torch.Generator().manual_seed(seed)",
            "rng = torch.Generator().manual_seed(rd.collectives.broadcast_object(seed))",
        ),
        (
            "rng = np.random.Generator(np.random.PCG64())",
            "rng = np.random.Generator(rd.collectives.broadcast_object(np.random.PCG64()))",
        ),
        (
            "first = random.SystemRandom().sample(text, 4)",
            "first = rd.collectives.broadcast_object(random.SystemRandom().sample(text, 4))",
        ),
        ("seed = secrets.randbelow(9)", "seed = rd.collectives.broadcast_object(secrets.randbelow(9))"),
        ("number = int.from_bytes(os.urandom(4), 'big')\nnp.random.seed(number)", SHARED),
        ("def seed():\n    return int(datetime.now().timestamp())\nrandom.seed(seed())", SHARED),
        (
            "parser = argparse.ArgumentParser()\nparser.add_argument('--seed', default=int(time.time()))\n"
            "args = parser.parse_args()\nnp.random.seed(args.seed)",
            SHARED,
        ),
        (
            "def fill(options):\n    if options.seed is None:\n        options.seed = int(time.time())\n"
            "args = argparse.ArgumentParser().parse_args()\nfill(args)\nnp.random.seed(args.seed)",
            SHARED,
        ),
        ("np.random.seed()", SHARED),
        ("random.seed(time.time())", SHARED),
        ("torch.seed()", SHARED),
    ],
)
def test_all_processes_have_what_rank_0_has(made: str, line: str, tmp_path: Path) -> None:
    assert line in converted(tmp_path, SCRIPT.replace("MADE", made))


@pytest.mark.parametrize(
    "made",
    [
        "chars = sorted(set(text))",
        "sizes = list({len(word) for word in text.split()})",
        "rest = [i for i in range(9)]\nchosen = set(np.random.choice(rest, 2))\nrest = list(set(rest) - chosen)",
        "chosen = set(np.random.choice(9, 2))\nfor i in chosen:\n    print(i)",
        "numbers = [n for n in {1, 2, 3}]",
        "ids = [int(i) for i in '1 2'.split()]\nunique = list(set(ids))",
        "for line in text.split():\n    chars = list(set(line))",
        "known = set(text)\nfor char in known:\n    known.discard('x')",
        "known, n = set(), 0\nfor char in set(text):\n    known.add(char)\n    n += 1\nknown.update(set(text))",
        "rng = np.random.default_rng(0)\nrandom.seed(1)",
        "args = argparse.ArgumentParser().parse_args()\nargs.start = time.time()\nrng = random.Random(args.seed)",
        "print(list(set(text)))\nnp.save('chars.npy', list(set(text)))",
    ],
)
def test_what_is_the_same_everywhere_stays_as_it_is(made: str, tmp_path: Path) -> None:
    assert not any("broadcast_object" in line for line in converted(tmp_path, SCRIPT.replace("MADE", made)))


@pytest.mark.parametrize(
    "made",
    [
        "rng = torch.Generator()\nrng.seed()",
        "rng = torch.Generator()\nprint(rng.seed())",
        "rng = random.Random(0)\nrng.seed()",
        "letters = list(text)\nrandom.SystemRandom().shuffle(letters)",
    ],
)
def test_a_seed_of_the_system_is_left_to_a_person(made: str, tmp_path: Path) -> None:
    found = conversion(tmp_path, SCRIPT.replace("MADE", made)).findings
    (advice,) = [finding for finding in found if finding.code == "RF108"]
    assert not advice.edits and "seed" in advice.help


def test_an_order_that_is_made_before_the_processes_join_is_left_to_a_person(tmp_path: Path) -> None:
    script = SCRIPT.replace("MADE", "from vocabulary import INDEX")
    found = conversion(tmp_path, script, vocabulary="INDEX = {w: i for i, w in enumerate(set('a text'))}\n").findings
    (advice,) = [finding for finding in found if finding.code == "RF108"]
    assert not advice.edits and "sorted(...)" in advice.help
