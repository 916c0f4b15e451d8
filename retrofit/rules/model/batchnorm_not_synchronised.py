"""RF206 batchnorm-not-synchronised: BatchNorm in a model that trains on several GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.model.layers import has_batchnorm
from retrofit.training.torch_api.modules import SYNC_BATCHNORM

RULE = CATALOG["RF206"]
INVALID = [
    """\
model = DDP(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
""",
    """\
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x):
        return self.norm(x)


def build():
    return nn.Sequential(*[Block(4) for _ in range(3)])


model = DDP(build())
""",
    """\
import torchvision

model = DDP(torchvision.models.resnet18())
""",
]
VALID = [
    """\
net = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
model = DDP(net)
""",
    # statistics of each sample
    """\
model = DDP(nn.Sequential(nn.Linear(4, 2), nn.LayerNorm(2), nn.GroupNorm(1, 2)))
""",
    # converted somewhere else
    """\
def build():
    net = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    return nn.SyncBatchNorm.convert_sync_batchnorm(net)


model = DDP(build())
""",
    # the teacher is not part of the wrapped model
    """\
teacher = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)).eval()
model = DDP(Net())
""",
]


def find(project: Project) -> Iterator[Finding]:
    if project.calls_any(SYNC_BATCHNORM):
        return
    for site in project.wrapping.sites:
        if has_batchnorm(project.analysis, site):
            message = "BatchNorm takes its statistics from one rank's samples"
            yield found(RULE, site.scope.source, site.call, message)
