"""Train the network of parts.py on one GPU or on the CPU: the script that `retrofit convert` gets."""

import torch
import torch.nn.functional as F
from parts import Images, Net, options, wait_for_turn
from torch.utils.data import DataLoader


def train_one_epoch(model, loader, optimizer, device, epoch):
    model.train()
    total, correct, count = 0.0, 0, 0
    for step, (images, labels) in enumerate(loader):
        images, labels = images.to(device), labels.to(device)
        outputs = model(images)
        loss = F.cross_entropy(outputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(labels)
        correct += (outputs.argmax(1) == labels).sum().item()
        count += len(labels)
        if step % 10 == 0:
            print(f"epoch {epoch} step {step:3d} loss {loss.item():.4f}")
    print(f"epoch {epoch} loss {total / count:.4f} accuracy {correct / count:.4f}")


def main():
    args = options().parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(Images(args.length), batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = Net(args.width, args.hidden).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        wait_for_turn()
        train_one_epoch(model, loader, optimizer, device, epoch)
    wait_for_turn()


if __name__ == "__main__":
    main()
