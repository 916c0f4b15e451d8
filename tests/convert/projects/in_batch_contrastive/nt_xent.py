import torch
import torch.nn.functional as F


def nt_xent(z, args):
    """z holds the first views of the batch, then the second views: [2 * batch_size, dim]

    The positive of row i is row i + batch_size (and vice versa), all other rows are negatives.
    """
    z = F.normalize(z, dim=1)
    logits = z @ z.t() / args.temperature
    # never compare a view with itself
    logits = logits - 1e9 * torch.eye(2 * args.batch_size, device=z.device)

    idx = torch.arange(args.batch_size, device=z.device)
    labels = torch.cat([idx + args.batch_size, idx])
    return F.cross_entropy(logits, labels), logits, labels
