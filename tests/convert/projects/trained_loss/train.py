import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from prototypes import PrototypeLoss

parser = argparse.ArgumentParser()
parser.add_argument('--epochs', type=int, default=4)
parser.add_argument('--pull', type=float, default=0.1, help='weight of the prototype loss')
args = parser.parse_args()


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.features = nn.Linear(6, 3)
        self.classify = nn.Linear(3, 4)

    def forward(self, x):
        feats = torch.tanh(self.features(x))
        return feats, self.classify(feats)


def get_data():
    g = torch.Generator().manual_seed(3)
    y = torch.randint(0, 4, (53,), generator=g)
    x = torch.randn(53, 6, generator=g) + y.unsqueeze(1).float()
    return TensorDataset(x, y)


def main():
    torch.manual_seed(11)
    loader = DataLoader(get_data(), batch_size=12, shuffle=True)  # the last batch has 5
    net = Net()
    proto = PrototypeLoss(4, 3)
    # how much each of both losses counts is learnt too
    log_vars = nn.Parameter(torch.zeros(2))
    opt_net = torch.optim.SGD(list(net.parameters()) + [log_vars], lr=0.1, momentum=0.9)
    opt_proto = torch.optim.SGD(proto.parameters(), lr=0.5)

    for epoch in range(args.epochs):
        net.train()
        for i, (x, y) in enumerate(loader):
            feats, scores = net(x)
            ce = F.cross_entropy(scores, y)
            pull = args.pull * proto(feats, y)
            loss = ce * torch.exp(-log_vars[0]) + pull * torch.exp(-log_vars[1]) + log_vars.sum()
            opt_net.zero_grad()
            opt_proto.zero_grad()
            loss.backward()
            opt_net.step()
            # the weight of the loss must not slow down its prototypes
            for p in proto.parameters():
                p.grad.data *= 1.0 / args.pull
            opt_proto.step()
        print('epoch %d  loss %.4f' % (epoch, loss.item()))
    torch.save({'net': net.state_dict(), 'proto': proto.state_dict(), 'log_vars': log_vars}, 'net.pt')


if __name__ == '__main__':
    main()
