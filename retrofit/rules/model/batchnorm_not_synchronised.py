"""RF206 batchnorm-not-synchronised: BatchNorm in a model that trains on several GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.layers import SYNCHRONISING, has_batchnorm
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found

RULE = CATALOG["RF206"]
INVALID = [
    """\
model = DDP(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
"""
]
VALID = [
    """\
net = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
model = DDP(net)
"""
]


def find(project: Project) -> Iterator[Finding]:
    if project.calls_any(SYNCHRONISING):
        return
    for site in project.wrapping.sites:
        if has_batchnorm(project.analysis, site):
            message = "BatchNorm takes its statistics from one process's share"
            yield found(RULE, site.scope.source, site.call, message)
