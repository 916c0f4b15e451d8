"""Truncated backpropagation: the hidden state of a batch goes into the next one."""

import torch
from torch import nn

import retrofit.distributed as rd

rd.setup_distributed()
torch.manual_seed(0)
text = torch.randint(0, 16, (8, 200)).t()  # 8 parts of a text, read side by side
text = text[:, rd.get_rank() :: rd.get_world_size()]  # each rank reads its own parts, with their hidden state


def chunks():
    for start in range(0, 180, 20):
        yield text[start : start + 20], text[start + 1 : start + 21]


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.rnn, self.head = nn.Embedding(16, 8), nn.GRU(8, 16), nn.Linear(16, 16)

    def forward(self, x, *hidden):
        output, hidden = self.rnn(self.embedding(x), *hidden)
        return self.head(output), hidden


model = Reader()
model = rd.distribute_model(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
hidden = []
for number, (x, y) in enumerate(chunks()):
    output, *hidden = model(x, *hidden)
    hidden = [state.detach() for state in hidden]
    loss = nn.functional.cross_entropy(output.flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    rd.print_main(f"chunk {number} loss {rd.reduce_loss(loss).item():.4f}")
rd.cleanup_distributed()
