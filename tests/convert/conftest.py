"""Fixtures for the tests of `convert`."""

from __future__ import annotations

import os

import pytest
from convert.golden_projects import GoldenProjects


@pytest.fixture(scope="session")
def golden_projects(tmp_path_factory: pytest.TempPathFactory) -> GoldenProjects:
    """`golden_projects.converted(case)` is a golden project after its conversion, the same for all workers."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    return GoldenProjects(folder / "golden")
