class AverageMeter(object):
    """average of a value over the samples of an epoch"""

    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(self.count, 1)


def iou_score(output, target):
    pred = output.detach().cpu().numpy() > 0     # logits
    true = target.cpu().numpy() > 0.5
    inter = (pred & true).sum(axis=(1, 2, 3))
    union = (pred | true).sum(axis=(1, 2, 3))
    return float(((inter + 1e-5) / (union + 1e-5)).mean())
