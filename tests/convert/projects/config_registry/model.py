import torch
import torch.nn as nn
import torch.nn.functional as F


class ConvClassifier(nn.Module):
    def __init__(self, channels, num_classes):
        super().__init__()
        self.conv1 = nn.Conv1d(1, channels, 5)
        self.conv2 = nn.Conv1d(channels, channels, 5)
        self.fc = nn.Linear(channels * 5, num_classes)

    def forward(self, x):
        x = F.relu(F.max_pool1d(self.conv1(x), 2))
        x = F.relu(F.max_pool1d(self.conv2(x), 2))
        return F.log_softmax(self.fc(x.flatten(1)), dim=1)

    def __str__(self):
        n = sum(p.numel() for p in self.parameters() if p.requires_grad)
        return super().__str__() + '\ntrainable parameters: %d' % n


# losses

def nll_loss(output, target):
    return F.nll_loss(output, target)


# metrics

def accuracy(output, target):
    with torch.no_grad():
        return (output.argmax(1) == target).float().mean().item()


def top_2_accuracy(output, target, k=2):
    with torch.no_grad():
        best = output.topk(k, dim=1)[1]
        return (best == target[:, None]).any(1).float().mean().item()
