"""Sentences of a made-up language, drawn from a fixed seed, padded to one length."""

import torch
from torch.utils.data import Dataset, IterableDataset

PAD, START, END = 0, 1, 2
NUM_TOKENS = 20
MAX_LENGTH = 12


def make_sentences(num_sentences, seed):
    """Return sentences (lists of tokens) of 3 to MAX_LENGTH + 1 tokens: every word is likely after one other."""
    generator = torch.Generator().manual_seed(seed)
    sentences = []
    for _ in range(num_sentences):
        length = int(torch.randint(1, MAX_LENGTH, (1,), generator=generator))
        words = [int(torch.randint(END + 1, NUM_TOKENS, (1,), generator=generator))]
        while len(words) < length:
            surprise = torch.rand(1, generator=generator).item() < 0.2
            step = int(torch.randint(0, 5, (1,), generator=generator)) if surprise else 3
            words.append(END + 1 + (words[-1] * 2 + step) % (NUM_TOKENS - END - 1))
        sentences.append([START, *words, END])
    return sentences


def padded(sentence):
    """Return input and target (MAX_LENGTH,) int64; a target that is PAD does not count."""
    tokens = torch.full((MAX_LENGTH + 1,), PAD)
    tokens[: len(sentence)] = torch.tensor(sentence)
    return tokens[:-1], tokens[1:]


class Sentences(Dataset):
    """Sentences by number."""

    def __init__(self, sentences):
        self.sentences = sentences

    def __len__(self):
        return len(self.sentences)

    def __getitem__(self, index):
        return padded(self.sentences[index])


class SentenceStream(IterableDataset):
    """Every `num_parts`-th sentence, from `part` on, of an order that is drawn anew for every epoch.

    All parts have the same number of sentences; the few that do not share out evenly are left out.
    """

    def __init__(self, sentences, seed, part=0, num_parts=1):
        self.sentences, self.seed = sentences, seed
        self.part, self.num_parts = part, num_parts
        self.epoch = 0

    def __len__(self):
        return len(self.sentences) // self.num_parts

    def __iter__(self):
        order = torch.randperm(
            len(self.sentences), generator=torch.Generator().manual_seed(1000 * self.seed + self.epoch)
        )
        for index in order[self.part :: self.num_parts][: len(self)].tolist():
            yield padded(self.sentences[index])
