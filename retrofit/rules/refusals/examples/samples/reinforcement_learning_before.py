"""REINFORCE: the samples come from episodes that the model itself plays."""

import torch
from torch import nn

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


torch.manual_seed(0)
model = nn.Linear(1, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for step in range(20):
    with torch.no_grad():
        played = [play(model, step * EPISODES + number) for number in range(EPISODES)]
    rewards = torch.tensor([reward for _, _, reward in played])
    mean = rewards.sum().item() / EPISODES
    states = torch.tensor([states for states, _, _ in played])
    actions = torch.tensor([actions for _, actions, _ in played])
    logits = model(states).squeeze(-1)
    losses = nn.functional.binary_cross_entropy_with_logits(logits, actions, reduction="none").sum(1)
    loss = (losses * (rewards - mean)).sum() / EPISODES
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} reward {mean:.4f}")
