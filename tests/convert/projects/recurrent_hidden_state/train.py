# word level language model on simple sentences
import argparse
import math

import torch
import torch.nn as nn

from corpus import Corpus
from rnn_model import RNNModel

parser = argparse.ArgumentParser()
parser.add_argument('--emsize', type=int, default=16)
parser.add_argument('--nhid', type=int, default=16)
parser.add_argument('--lr', type=float, default=5)
parser.add_argument('--clip', type=float, default=0.25)
parser.add_argument('--epochs', type=int, default=40)
parser.add_argument('--batch_size', type=int, default=12, help='number of parallel streams')
parser.add_argument('--bptt', type=int, default=10, help='words per step')
parser.add_argument('--seed', type=int, default=1111)
parser.add_argument('--save', type=str, default='lm.pt')
args = parser.parse_args()

torch.manual_seed(args.seed)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EVAL_BATCH = 6


def batchify(ids, columns):
    """cut the text into `columns` equally long streams, one per column"""
    rows = len(ids) // columns
    return ids[:rows * columns].view(columns, rows).t().contiguous().to(device)


def get_batch(source, i):
    n = min(args.bptt, len(source) - 1 - i)
    return source[i:i + n], source[i + 1:i + 1 + n].reshape(-1)


def repackage_hidden(h):
    # keep the values, forget how they were computed
    return tuple(x.detach() for x in h)


corpus = Corpus()
train_data = batchify(corpus.train, args.batch_size)
val_data = batchify(corpus.valid, EVAL_BATCH)
test_data = batchify(corpus.test, EVAL_BATCH)

model = RNNModel(len(corpus.words), args.emsize, args.nhid).to(device)
criterion = nn.CrossEntropyLoss()


def train_epoch(lr):
    model.train()
    losses = []
    hidden = model.init_hidden(args.batch_size)
    for i in range(0, len(train_data) - 1, args.bptt):
        words, nexts = get_batch(train_data, i)
        hidden = repackage_hidden(hidden)
        scores, hidden = model(words, hidden)
        loss = criterion(scores, nexts)
        model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        # plain SGD
        for p in model.parameters():
            p.data.add_(p.grad.data, alpha=-lr)
        losses.append(loss.item())
        if len(losses) % 3 == 0:
            cur = sum(losses[-3:]) / 3
            print('   step %d loss %.3f ppl %.2f' % (len(losses), cur, math.exp(cur)))


def evaluate(source):
    model.eval()
    total, hidden = 0., model.init_hidden(EVAL_BATCH)
    with torch.no_grad():
        for i in range(0, len(source) - 1, args.bptt):
            words, nexts = get_batch(source, i)
            scores, hidden = model(words, hidden)
            total += criterion(scores, nexts).item() * len(words)
    return total / (len(source) - 1)


lr = args.lr
best = None
for epoch in range(1, args.epochs + 1):
    train_epoch(lr)
    val = evaluate(val_data)
    print('epoch %d lr %.2f val loss %.3f ppl %.2f' % (epoch, lr, val, math.exp(val)))
    if best is None or val < best:
        best = val
        with open(args.save, 'wb') as f:
            torch.save(model.state_dict(), f)
    else:
        lr = lr / 4  # no improvement

with open(args.save, 'rb') as f:
    model.load_state_dict(torch.load(f, map_location=device))
test = evaluate(test_data)
print('test loss %.3f ppl %.2f' % (test, math.exp(test)))
