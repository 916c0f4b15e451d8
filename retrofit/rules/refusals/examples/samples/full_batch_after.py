"""A graph that is one batch: the model sees all nodes, the loss counts those of the training set."""

import torch
from torch import nn

import retrofit.distributed as rd

rd.setup_distributed()
torch.manual_seed(0)
nodes, labels = torch.randn(60, 8), torch.randint(0, 3, (60,))
adjacency = (torch.rand(60, 60) < 0.1).float() + torch.eye(60)
adjacency /= adjacency.sum(1, keepdim=True)
train_nodes = torch.arange(0, 60, 2)
mine = train_nodes[rd.get_rank() :: rd.get_world_size()]  # all nodes are computed, the loss is split


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x, adjacency):
        return adjacency @ self.second(torch.relu(adjacency @ self.first(x)))


model = GraphNet()
model = rd.distribute_model(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(20):
    out = model(nodes, adjacency)
    loss = nn.functional.cross_entropy(out[mine], labels[mine])
    loss = loss * (len(mine) * rd.get_world_size() / len(train_nodes))  # the mean of the ranks is that of all nodes
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    rd.print_main(f"epoch {epoch} loss {rd.reduce_loss(loss).item():.4f}")
rd.cleanup_distributed()
