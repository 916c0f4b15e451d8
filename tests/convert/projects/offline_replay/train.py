"""Q-learning from transitions that were recorded before: each step samples a replay buffer and draws its noise."""

import random
from collections import namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

Transition = namedtuple('Transition', ['state', 'action', 'reward', 'next_state'])
BATCH_SIZE = 12
STEPS = 30


class ReplayBuffer:
    def __init__(self):
        self.storage = []

    def push(self, *values):
        self.storage.append(Transition(*values))

    def sample(self, batch_size):
        batch = Transition(*zip(*random.sample(self.storage, batch_size)))
        states = torch.as_tensor(np.stack(batch.state), dtype=torch.float32)
        next_states = torch.as_tensor(np.stack(batch.next_state), dtype=torch.float32)
        return states, torch.tensor(batch.action), torch.tensor(batch.reward), next_states


def main():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    buffer = ReplayBuffer()
    for _ in range(200):
        state = np.random.randn(4)
        action = int(np.random.randint(2))
        buffer.push(state, action, float(state[action]), state + 0.1 * np.random.randn(4))

    q_net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    target_net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    target_net.load_state_dict(q_net.state_dict())
    optimizer = torch.optim.Adam(q_net.parameters(), lr=1e-2)
    history = []
    for step in range(STEPS):
        states, actions, rewards, next_states = buffer.sample(BATCH_SIZE)
        noise = 0.01 * torch.randn(BATCH_SIZE, 4)
        q = q_net(states + noise).gather(1, actions.unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            target = rewards + 0.9 * target_net(next_states).max(1)[0]
        loss = F.smooth_l1_loss(q, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
        if step % 10 == 9:
            target_net.load_state_dict(q_net.state_dict())
            print(step, 'loss', round(float(np.mean(history[-10:])), 4))
    torch.save(q_net.state_dict(), 'q_net.pt')


if __name__ == '__main__':
    main()
