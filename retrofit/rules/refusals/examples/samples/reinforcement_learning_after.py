"""REINFORCE: the samples come from episodes that the model itself plays."""

import torch
from torch import nn

import retrofit.distributed as rd

EPISODES, LENGTH = 8, 10


def play(model, seed):
    """Walk to the left or to the right; the reward is how near to 3 one is."""
    generator = torch.Generator().manual_seed(seed)
    position, states, actions, reward = 0.0, [], [], 0.0
    for _ in range(LENGTH):
        states.append([position])
        probability = torch.sigmoid(model(torch.tensor(states[-1])))
        actions.append(float(torch.rand(1, generator=generator) < probability))
        position += 0.5 if actions[-1] else -0.5
        reward -= abs(3 - position)
    return states, actions, reward


rd.setup_distributed()
torch.manual_seed(0)
model = nn.Linear(1, 1)
model = rd.distribute_model(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
mine = range(rd.get_rank(), EPISODES, rd.get_world_size())  # the episodes of this rank
for step in range(20):
    with torch.no_grad():
        played = [play(model, step * EPISODES + number) for number in mine]
    rewards = torch.tensor([reward for _, _, reward in played])
    mean = rd.sum_over_ranks(rewards.sum().item()) / EPISODES
    states = torch.tensor([states for states, _, _ in played])
    actions = torch.tensor([actions for _, actions, _ in played])
    logits = model(states).squeeze(-1)
    losses = nn.functional.binary_cross_entropy_with_logits(logits, actions, reduction="none").sum(1)
    loss = (losses * (rewards - mean)).sum() / EPISODES * rd.get_world_size()  # DDP makes a mean of the ranks
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    rd.print_main(f"step {step} reward {mean:.4f}")
rd.cleanup_distributed()
