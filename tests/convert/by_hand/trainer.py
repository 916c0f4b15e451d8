"""A Trainer class: snapshots that are resumed, accumulated gradients, an evaluation that is added up over processes.

torchrun --nproc_per_node=2 trainer.py
"""

import contextlib
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, random_split


class Points(Dataset):
    def __init__(self, count):
        self.points = torch.linspace(-1, 1, count).unsqueeze(1)

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        return self.points[index], self.points[index] ** 2


class Trainer:
    def __init__(self, model, train_set, val_set, batch_size, accum_steps, snapshot_path):
        self.rank = int(os.environ["RANK"])
        self.world_size = dist.get_world_size()
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.device = torch.device("cuda", self.local_rank) if torch.cuda.is_available() else torch.device("cpu")
        self.train_loader = self._prepare_dataloader(train_set, batch_size)
        share = Subset(val_set, range(self.rank, len(val_set), self.world_size))
        self.val_loader = DataLoader(share, batch_size=batch_size)
        self.accum_steps = accum_steps
        self.snapshot_path = snapshot_path
        self.epochs_run, self.best = 0, float("inf")
        self.model = model.to(self.device)
        if os.path.exists(snapshot_path):
            self._load_snapshot(snapshot_path)
        self.model = DDP(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        steps = 2 * (len(self.train_loader) // accum_steps)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=1e-2, total_steps=steps)

    def _prepare_dataloader(self, dataset, batch_size):
        return DataLoader(dataset, batch_size=batch_size, sampler=DistributedSampler(dataset), drop_last=True)

    def _load_snapshot(self, path):
        snapshot = torch.load(path, map_location=self.device)
        self.model.load_state_dict(snapshot["MODEL_STATE"])
        self.epochs_run = snapshot["EPOCHS_RUN"]

    def _run_epoch(self, epoch):
        self.train_loader.sampler.set_epoch(epoch)
        self.model.train()
        total = torch.zeros((), device=self.device)
        for number, (inputs, targets) in enumerate(self.train_loader, start=1):
            is_last = number % self.accum_steps == 0
            with contextlib.nullcontext() if is_last else self.model.no_sync():
                loss = F.mse_loss(self.model(inputs.to(self.device)), targets.to(self.device)) / self.accum_steps
                loss.backward()
            total += loss.detach() * self.accum_steps
            if is_last:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.scheduler.step()
        dist.all_reduce(total)
        return total.item() / (len(self.train_loader) * self.world_size)

    @torch.no_grad()
    def _evaluate(self):
        self.model.eval()
        total, count = 0.0, 0
        for inputs, targets in self.val_loader:
            outputs = self.model.module(inputs.to(self.device))
            total += F.mse_loss(outputs, targets.to(self.device), reduction="sum").item()
            count += len(inputs)
        sums = torch.tensor([total, count], device=self.device)
        dist.all_reduce(sums)
        return (sums[0] / sums[1]).item()

    def _save_snapshot(self, epoch):
        snapshot = {"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch + 1}
        torch.save(snapshot, self.snapshot_path)

    def train(self, max_epochs):
        for epoch in range(self.epochs_run, max_epochs):
            loss = self._run_epoch(epoch)
            error = self._evaluate()
            if self.rank == 0:
                print(f"epoch {epoch}: loss {loss:.4f}, error {error:.4f}")
            if error < self.best:
                self.best = error
                if self.rank == 0:
                    self._save_snapshot(epoch)
            if error > 100 * self.best:
                break
        dist.barrier()


def main():
    dist.init_process_group(backend="nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    train_set, val_set = random_split(Points(120), [96, 24], generator=torch.Generator().manual_seed(0))
    model = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    Trainer(model, train_set, val_set, batch_size=8, accum_steps=2, snapshot_path="snapshot.pt").train(max_epochs=2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
