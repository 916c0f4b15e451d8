"""Random walks of a library next to the batches of a loader: nodes of one walk are to be near to each other."""

import itertools

import networkx
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import retrofit.distributed as rd

rd.setup_distributed()
torch.manual_seed(0)
graph = networkx.karate_club_graph()
clubs = torch.tensor([float(graph.nodes[node]["club"] == "Officer") for node in graph])
loader = DataLoader(TensorDataset(torch.arange(32), clubs[:32]), batch_size=8)
loader = rd.distribute_loader(loader)
walks = networkx.generate_random_paths(graph, 1000, path_length=3, seed=0)
walks = itertools.islice(walks, rd.get_rank(), None, rd.get_world_size())  # those of this rank
num_walks = rd.data.micro_batch(4)  # of each rank
model = nn.Sequential(nn.Embedding(len(graph), 4), nn.Linear(4, 1), nn.Flatten(0))
model = rd.distribute_model(model)
optimizer = torch.optim.SGD(model.parameters(), lr=rd.scaled_lr(0.5))
for epoch in range(4):
    for nodes, labels in loader:
        ends = torch.tensor([[walk[0], walk[-1]] for walk in (next(walks) for _ in range(num_walks))])
        first, last = model(ends[:, 0]), model(ends[:, 1])
        loss = nn.functional.binary_cross_entropy_with_logits(model(nodes), labels)
        loss = loss + 0.1 * (first - last).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    rd.print_main(f"epoch {epoch} loss {rd.loss.reduce_last_loss(loss).item():.4f}")
rd.cleanup_distributed()
