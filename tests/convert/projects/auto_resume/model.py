import torch.nn as nn


class TCN(nn.Module):
    def __init__(self, num_sensors, horizon, channels):
        super().__init__()
        self.conv1 = nn.Conv1d(num_sensors, channels, 3, padding=2, dilation=2)
        self.conv2 = nn.Conv1d(channels, channels, 3, padding=2, dilation=2)
        self.act = nn.ReLU()
        self.out = nn.Linear(channels, horizon)

    def forward(self, x):
        x = self.act(self.conv1(x))
        x = self.act(self.conv2(x))
        return self.out(x[:, :, -1])
