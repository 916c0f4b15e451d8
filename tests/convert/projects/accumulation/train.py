import argparse
import os
import torch
import torch.nn as nn
from torch.utils.data import DataLoader
from tqdm import tqdm

from corpus import SentenceDataset, pad_collate, VOCAB


class AttnClassifier(nn.Module):
    def __init__(self, dim=24, n_class=3):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim, padding_idx=0)
        self.attn = nn.MultiheadAttention(dim, 2, batch_first=True)
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, n_class)

    def forward(self, tokens):
        pad = tokens == 0
        h = self.emb(tokens)
        a, _ = self.attn(h, h, h, key_padding_mask=pad)
        h = self.norm(h + a)
        keep = (~pad).unsqueeze(-1).float()
        return self.out((h * keep).sum(1) / keep.sum(1))


def evaluate(model, loader, device):
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for tokens, labels in loader:
            tokens, labels = tokens.to(device), labels.to(device)
            pred = model(tokens).argmax(dim=-1)
            correct += (pred == labels).sum().item()
            total += labels.size(0)
    return correct / total


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--num_epochs', type=int, default=5)
    parser.add_argument('--train_batch_size', type=int, default=12)
    parser.add_argument('--accum', type=int, default=2, help='batches per optimizer step')
    parser.add_argument('--learning_rate', type=float, default=0.2)
    parser.add_argument('--output_dir', default='output')
    args = parser.parse_args()

    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    accum = args.accum

    train_loader = DataLoader(SentenceDataset(90, 1), batch_size=args.train_batch_size, shuffle=True,
                              collate_fn=pad_collate)
    dev_loader = DataLoader(SentenceDataset(52, 2), batch_size=24, shuffle=False, collate_fn=pad_collate)

    model = AttnClassifier().to(device)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate, momentum=0.9, weight_decay=1e-4)

    print('%d sentences, %d per step, %d steps' % (
        len(train_loader.dataset), args.train_batch_size * accum, len(train_loader) // accum * args.num_epochs))

    global_step = 0
    for epoch in range(args.num_epochs):
        model.train()
        tr_loss = 0
        optimizer.zero_grad()
        for i, (tokens, labels) in enumerate(tqdm(train_loader, desc='epoch %d' % epoch)):
            tokens, labels = tokens.to(device), labels.to(device)
            loss = loss_fn(model(tokens), labels)
            loss = loss / accum
            loss.backward()
            tr_loss += loss.item()

            if (i + 1) % accum == 0:
                optimizer.step()
                optimizer.zero_grad()
                global_step += 1
                print('step %d loss %.4f' % (global_step, tr_loss / (i + 1) * accum))

        print('epoch %d dev acc %.4f' % (epoch, evaluate(model, dev_loader, device)))

    os.makedirs(args.output_dir, exist_ok=True)
    torch.save(model.state_dict(), os.path.join(args.output_dir, 'pytorch_model.bin'))
