"""
Teaches a tiny character model to add: "27+61=088;"
"""
import argparse
import os

import torch
from torch.utils.data import DataLoader, Dataset

from mylib.model import CharModel
from mylib.trainer import Trainer
from mylib.utils import Config, set_seed

CHARS = '0123456789+=;'


class Sums(Dataset):
    def __init__(self, split):
        order = torch.randperm(90 * 90, generator=torch.Generator().manual_seed(77)).tolist()
        picked = order[:64] if split == 'train' else order[64:84]
        self.pairs = [(10 + k // 90, 10 + k % 90) for k in picked]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, idx):
        a, b = self.pairs[idx]
        ids = torch.tensor([CHARS.index(c) for c in '%d+%d=%03d;' % (a, b, a + b)])
        return ids[:-1], ids[1:]


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--max_iters', type=int, default=2000)
    parser.add_argument('--eval_every', type=int, default=6)
    parser.add_argument('--out', type=str, default='out/sums')
    args = parser.parse_args()

    set_seed(1337)
    os.makedirs(args.out, exist_ok=True)

    train_set, test_set = Sums('train'), Sums('test')
    test_loader = DataLoader(test_set, batch_size=10)

    model = CharModel(Config(num_chars=len(CHARS), length=9, width=16))
    print('%d weights' % sum(p.numel() for p in model.parameters()))

    trainer = Trainer(Config(lr=5e-3, max_iters=args.max_iters, batch_size=12, num_workers=0), model, train_set)
    best = 0

    def log_loss(trainer):
        if trainer.iter_num % 3 == 0:
            print(f'iter {trainer.iter_num} loss {trainer.loss.item():.5f}')

    def eval_and_save(trainer):
        global best
        if trainer.iter_num % args.eval_every:
            return
        model.eval()
        loss, right = 0.0, 0
        with torch.no_grad():
            for x, y in test_loader:
                x, y = x.to(trainer.device), y.to(trainer.device)
                logits, l = model(x, y)
                loss += l.item() * len(x)
                right += (logits.argmax(-1) == y).sum().item()
        model.train()
        n = len(test_set)
        print(f'   test loss {loss / n:.5f}, {right} of {n * 9} characters right')
        if right >= best:
            best = right
            torch.save(model.state_dict(), os.path.join(args.out, 'model.pt'))
            print('   saved')

    trainer.add_callback('on_batch_end', log_loss)
    trainer.add_callback('on_batch_end', eval_and_save)
    trainer.add_callback('on_train_end', lambda t: print('done after', t.iter_num, 'iterations'))
    trainer.run()
