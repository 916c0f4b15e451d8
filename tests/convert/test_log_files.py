"""Files of the logging module are those of rank 0, whichever handler writes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.additions_of import write_converted
from convert.conversion import conversion
from verify.projects.launch import Launcher

SCRIPT = """\
import logging
import logging.handlers
from logging.handlers import WatchedFileHandler

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Appending(logging.FileHandler):
    def __init__(self, path):
        super().__init__(path, mode="a")


class ByName(logging.FileHandler):
    def __init__(self, path):
        logging.FileHandler.__init__(self, path)


class Short(logging.handlers.RotatingFileHandler):
    def format(self, record):
        return record.getMessage()


torch.manual_seed(0)
logger = logging.getLogger("run")
logger.setLevel(logging.INFO)
logger.propagate = False
logger.addHandler(HANDLER)
loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), batch_size=8)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    logger.info("epoch %d", epoch)
"""
HANDLERS = {
    "by size": "logging.handlers.RotatingFileHandler('run.log', maxBytes=9999)",
    "by time": "logging.handlers.TimedRotatingFileHandler(filename='run.log', when='D')",
    "watched": "WatchedFileHandler('run.log')",
    "a class that makes its base": "Appending('run.log')",
    "a class that names its base": "ByName('run.log')",
    "a class without a constructor": "Short('run.log')",
}


@pytest.mark.parametrize("name", HANDLERS)
def test_a_file_of_the_log_is_that_of_rank_0(name: str, tmp_path: Path, launcher: Launcher) -> None:
    result = conversion(tmp_path, SCRIPT.replace("HANDLER", HANDLERS[name]))
    write_converted(tmp_path, result)
    run = launcher.run(tmp_path, "train.py", [], world_size=2, RETROFIT_BATCH="global")
    assert run["statuses"] == [0, 0], run["outputs"]
    assert (tmp_path / "run.log").read_text().splitlines() == [f"epoch {epoch}" for epoch in range(3)]
