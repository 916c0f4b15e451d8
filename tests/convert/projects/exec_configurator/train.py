"""Fit a curve; settings are the constants below, overridden by a file and by --name=value.

python train.py config/short.py --lr=0.02
"""
import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

# ---------------------------------------------------------------------------
out_dir = 'out'
init_from = 'scratch'  # or 'resume'
eval_only = False
always_save = True
epochs = 4
batch_size = 24
lr = 0.01
grad_clip = 1.0
config_keys = [k for k, v in globals().items() if not k.startswith('_') and isinstance(v, (int, float, bool, str))]
exec(open('configurator.py').read())  # overrides from the command line or a file
config = {k: globals()[k] for k in config_keys}
# ---------------------------------------------------------------------------
os.makedirs(out_dir, exist_ok=True)
torch.manual_seed(1337)


def points(number, seed):
    generator = torch.Generator().manual_seed(seed)
    x = 6 * torch.rand(number, 1, generator=generator) - 3
    return TensorDataset(x, torch.sin(x) + 0.1 * torch.randn(number, 1, generator=generator))


train_loader = DataLoader(points(96, 1), batch_size=batch_size, shuffle=True)
val_loader = DataLoader(points(40, 2), batch_size=batch_size)
model = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
first_epoch, best = 0, 1e9
if init_from == 'resume':
    print(f"resuming from {out_dir}")
    checkpoint = torch.load(os.path.join(out_dir, 'ckpt.pt'))
    model.load_state_dict(checkpoint['model'])
    optimizer.load_state_dict(checkpoint['optimizer'])
    first_epoch, best = checkpoint['epoch'], checkpoint['best']


@torch.no_grad()
def estimate_loss():
    model.eval()
    total = 0.0
    for x, y in val_loader:
        total += F.mse_loss(model(x), y, reduction='sum').item()
    model.train()
    return total / len(val_loader.dataset)


for epoch in range(first_epoch, epochs):
    val_loss = estimate_loss()
    print(f"epoch {epoch}: val loss {val_loss:.5f}")
    if val_loss < best or always_save:
        best = min(best, val_loss)
        checkpoint = {'model': model.state_dict(), 'optimizer': optimizer.state_dict(), 'epoch': epoch, 'best': best,
                      'config': config}
        torch.save(checkpoint, os.path.join(out_dir, 'ckpt.pt'))
    if epoch == first_epoch and eval_only:
        break
    for x, y in train_loader:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        if grad_clip != 0.0:
            nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    print(f"epoch {epoch}: loss {loss.item():.5f}")
