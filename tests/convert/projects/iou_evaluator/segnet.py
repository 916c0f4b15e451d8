import torch
import torch.nn as nn
import torch.nn.functional as F


class FieldNet(nn.Module):
    def __init__(self, num_classes):
        super(FieldNet, self).__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
            nn.Conv2d(8, 12, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(inplace=True))
        self.near = nn.Conv2d(12, 8, 3, padding=1)
        self.far = nn.Conv2d(12, 8, 3, padding=2, dilation=2)
        self.classifier = nn.Conv2d(16, num_classes, 1)

    def forward(self, x):
        f = self.backbone(x)
        f = F.relu(torch.cat([self.near(f), self.far(f)], dim=1))
        return F.interpolate(self.classifier(f), size=x.shape[2:], mode='bilinear', align_corners=True)

    def get_1x_lr_params(self):
        for p in self.backbone.parameters():
            yield p

    def get_10x_lr_params(self):
        for part in (self.near, self.far, self.classifier):
            for p in part.parameters():
                yield p
