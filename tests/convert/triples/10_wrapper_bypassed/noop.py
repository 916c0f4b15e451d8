"""A method of the model inside DDP is called to look at it, without gradients: the loss goes through DDP."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils import data


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.embedding = nn.Embedding(10, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens):
        features, _ = self.rnn(self.embedding(tokens))
        return self.head(features)

    @torch.no_grad()
    def next_token(self, tokens):
        return self(tokens)[:, -1].argmax(-1)


class Trainer:
    def __init__(self, model, loader, device):
        self.loader, self.device = loader, device
        self.rank = dist.get_rank()
        self.model = nn.parallel.DistributedDataParallel(model.to(device))
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def train_one_epoch(self, epoch):
        self.model.train()
        self.loader.sampler.set_epoch(epoch)
        for tokens in self.loader:
            tokens = tokens.to(self.device)
            logits = self.model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def fit(self, num_epochs):
        for epoch in range(num_epochs):
            self.train_one_epoch(epoch)
            first = torch.zeros((1, 1), dtype=torch.long, device=self.device)
            if self.rank == 0:
                print(self.model.module.next_token(first).item())


def setup():
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


if __name__ == "__main__":
    torch.manual_seed(1)
    device = setup()
    text = torch.randint(0, 10, (32, 9))
    loader = data.DataLoader(text, batch_size=4, sampler=data.DistributedSampler(text))
    Trainer(Net(), loader, device).fit(2)
    dist.destroy_process_group()
