import random
import torch

SUBJ = 'the cat|the dog|a bird|my horse|one fox'.split('|')
VERB = 'sees|likes|follows|finds|hears'.split('|')
PLACE = 'in the garden|on the hill|near the river|at home'.split('|')


class Corpus(object):
    def __init__(self):
        r = random.Random(8)
        text = []
        while len(text) < 1200:
            s = '%s %s %s' % (r.choice(SUBJ), r.choice(VERB), r.choice(SUBJ))
            if r.random() < 0.5:
                s += ' ' + r.choice(PLACE)
            text += s.split() + ['<eos>']
        self.words = sorted(set(text))
        word2idx = dict((w, i) for i, w in enumerate(self.words))
        ids = torch.tensor([word2idx[w] for w in text])
        self.train, self.valid, self.test = ids[:800], ids[800:1000], ids[1000:]
