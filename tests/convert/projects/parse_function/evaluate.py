import torch
import torch.nn.functional as F


def dice(a, b):
    """a, b: N x ... with 0 and 1, mean over the N images"""
    a, b = a.flatten(1), b.flatten(1)
    both = (a * b).sum(1)
    return ((2 * both + 1e-6) / (a.sum(1) + b.sum(1) + 1e-6)).mean()


@torch.no_grad()
def evaluate(net, loader, device):
    net.eval()
    total = 0
    for batch in loader:
        out = net(batch['image'].to(device))
        true = batch['mask'].to(device)
        if net.n_classes == 1:
            total += dice((out.squeeze(1) > 0).float(), true.float())
        else:
            # one mask per class, without the background
            pred = F.one_hot(out.argmax(1), net.n_classes)[..., 1:].float()
            total += dice(pred, F.one_hot(true.long(), net.n_classes)[..., 1:].float())
    net.train()
    return total / max(len(loader), 1)
