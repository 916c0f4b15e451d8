import torch.nn as nn
import torch.nn.functional as F


class SpotLoss(nn.Module):
    """Class and offset of the cells that hold a spot, per spot; -1 marks cells that nobody has labelled."""

    def __init__(self, num_classes, batch_average=True):
        super().__init__()
        self.num_classes = num_classes
        self.batch_average = batch_average

    def forward(self, scores, offsets, labels, targets):
        n, cells = labels.shape
        pos = labels > 0
        num_pos = max(1, pos.sum().item())
        offset_loss = F.smooth_l1_loss(offsets[pos], targets[pos], reduction='sum')
        class_loss = F.cross_entropy(scores.reshape(-1, self.num_classes), labels.reshape(-1), ignore_index=-1,
                                     reduction='sum')
        class_loss /= num_pos
        smooth = (scores[:, 1:] - scores[:, :-1]).pow(2).mean()
        if self.batch_average:
            smooth = smooth / n
        return class_loss, offset_loss / num_pos, smooth
