"""legacy.py with Hugging Face Accelerate, as its documentation says; figures by `accelerator.reduce`."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from parts import Images, Net, options, wait_for_turn
from torch.utils.data import DataLoader


def train_one_epoch(accelerator, model, loader, optimizer, epoch):
    model.train()
    figures = torch.zeros(3, dtype=torch.float64)
    for step, (images, labels) in enumerate(loader):
        outputs = model(images)
        loss = F.cross_entropy(outputs, labels)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        own = [loss.item() * len(labels), (outputs.argmax(1) == labels).sum().item(), len(labels)]
        figures += torch.tensor(own, dtype=torch.float64)
        if step % 10 == 0:
            mean = accelerator.reduce(loss.detach(), reduction="mean")
            accelerator.print(f"epoch {epoch} step {step:3d} loss {mean.item():.4f}")
    total, correct, count = accelerator.reduce(figures.to(accelerator.device), reduction="sum").tolist()
    accelerator.print(f"epoch {epoch} loss {total / count:.4f} accuracy {correct / count:.4f}")


def main():
    args = options().parse_args()
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(0)
    loader = DataLoader(Images(args.length), batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = Net(args.width, args.hidden)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(args.epochs):
        wait_for_turn()
        train_one_epoch(accelerator, model, loader, optimizer, epoch)
    wait_for_turn()
    accelerator.end_training()


if __name__ == "__main__":
    main()
