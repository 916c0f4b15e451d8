"""RF206 batchnorm-not-synchronised: BatchNorm in a model that trains on several GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.layers import SYNCHRONISING, has_batchnorm

from .finding import Finding, found

CODE = "RF206"
NAME = "batchnorm-not-synchronised"
WHY = "Each process normalises by the statistics of its own share of the batch, which is another training."
HELP = "model = nn.SyncBatchNorm.convert_sync_batchnorm(model) before DDP; where the share is large enough, leave it"
BAD = """\
model = DDP(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
"""
GOOD = """\
net = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
model = DDP(net)
"""


def find(project: Project) -> Iterator[Finding]:
    if project.calls_any(SYNCHRONISING):
        return
    for site in project.wrapping.sites:
        if has_batchnorm(project.analysis, site):
            message = "BatchNorm takes its statistics from one process's share"
            yield found(CODE, site.scope.source, site.call, message, HELP)
