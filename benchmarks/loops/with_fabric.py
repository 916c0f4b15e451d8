"""legacy.py with Lightning Fabric, as its documentation says; figures by `fabric.all_reduce`."""

import os

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from parts import Images, Net, options, wait_for_turn
from torch.utils.data import DataLoader


def train_one_epoch(fabric, model, loader, optimizer, epoch):
    model.train()
    figures = torch.zeros(3, dtype=torch.float64)
    for step, (images, labels) in enumerate(loader):
        outputs = model(images)
        loss = F.cross_entropy(outputs, labels)
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
        own = [loss.item() * len(labels), (outputs.argmax(1) == labels).sum().item(), len(labels)]
        figures += torch.tensor(own, dtype=torch.float64)
        if step % 10 == 0:
            mean = fabric.all_reduce(loss.detach(), reduce_op="mean")
            fabric.print(f"epoch {epoch} step {step:3d} loss {mean.item():.4f}")
    total, correct, count = fabric.all_reduce(figures.to(fabric.device), reduce_op="sum").tolist()
    fabric.print(f"epoch {epoch} loss {total / count:.4f} accuracy {correct / count:.4f}")


def main():
    args = options().parse_args()
    accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    fabric = Fabric(accelerator=accelerator, devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp")
    fabric.launch()
    torch.manual_seed(0)
    loader = DataLoader(Images(args.length), batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = Net(args.width, args.hidden)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(loader)
    for epoch in range(args.epochs):
        loader.sampler.set_epoch(epoch)
        wait_for_turn()
        train_one_epoch(fabric, model, loader, optimizer, epoch)
    wait_for_turn()


if __name__ == "__main__":
    main()
