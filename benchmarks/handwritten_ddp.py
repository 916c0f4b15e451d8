"""The yardstick of scaling.py: the same training as train.py's, written by hand in plain torch, without any care.

No resume, no exact loss under ignore_index, no interruption, no logging: what a DDP tutorial ends with.

  torchrun --nproc_per_node=2 --standalone benchmarks/handwritten_ddp.py
"""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from segmentation.datasets import build_dataset
from segmentation.models import build_model


class HandwrittenLoop:
    """Model, optimizer and loader of one rank, advanced by `run_epoch`."""

    def __init__(
        self, layers: int, crop_size: int, batch_size: int, num_steps: int, model_type: str = "deeplabv3p"
    ) -> None:
        torch.manual_seed(0)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # the current GPU
        length = batch_size * num_steps * dist.get_world_size()
        dataset = build_dataset("synthetic", None, "train", 5, crop_size, 0, length)
        self.sampler = DistributedSampler(dataset)
        self.loader = DataLoader(dataset, batch_size=batch_size, sampler=self.sampler, drop_last=True)
        self.model = DistributedDataParallel(build_model(model_type, layers, 5).to(self.device))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01, momentum=0.9, weight_decay=5e-4)
        self.epoch = 0

    def run_epoch(self) -> float:
        """Train an epoch and return its seconds."""
        self.model.train()
        self.sampler.set_epoch(self.epoch)
        started = time.perf_counter()
        for batch in self.loader:
            image, label = batch["image"].to(self.device), batch["label"].to(self.device)
            loss = F.cross_entropy(self.model(image), label, ignore_index=255)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            loss.item()
        self.epoch += 1
        return time.perf_counter() - started


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    print(f"{HandwrittenLoop(18, 64, 16, 10).run_epoch() / 10:.3f} s per step")
    dist.destroy_process_group()
