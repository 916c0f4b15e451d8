"""Write a training project of any size: a script, and modules that hold a model, a dataset and helpers each.

The script chooses among twenty models, losses and datasets by name; each is built on those of the modules before it,
by inheritance and by calls, so that every module takes part in what the analysis follows.
"""

from __future__ import annotations

from pathlib import Path

MODULE = '''\
"""Model, data and helpers number {i}."""

import json
import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
{imports}

class Block{i}(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, inplanes, planes, stride=1, dropout=0.1):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.drop = nn.Dropout2d(dropout)
        self.shortcut = nn.Conv2d(inplanes, planes, 1, stride=stride)

    def forward(self, x):
        identity = self.shortcut(x)
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.drop(self.bn2(self.conv2(out)))
        return F.relu(out + identity)


class Net{i}({base}):
    """A small network of such blocks."""

    def __init__(self, classes=10, width=16):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.layer1 = self.make_layer(width, 2 * width, 2)
        self.layer2 = self.make_layer(2 * width, 4 * width, 2)
        self.head = nn.Linear(4 * width, classes)
        self.apply(initialise{i})

    def make_layer(self, inplanes, planes, depth):
        layers = [Block{i}(inplanes, planes, stride=2)]
        for _ in range(1, depth):
            layers.append(Block{i}(planes, planes))
        return nn.Sequential(*layers)

    def features(self, x):
        x = F.relu(self.stem(x))
        x = self.layer1(x)
        return self.layer2(x)

    def forward(self, x):
        x = self.features(x)
        x = F.adaptive_avg_pool2d(x, 1).flatten(1)
        return self.head(x)


def initialise{i}(module):
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.ones_(module.weight)
        nn.init.zeros_(module.bias)


class Images{i}(Dataset):
    """Images and labels of one split, from a list in a text file."""

    def __init__(self, folder, split="train", size=32):
        self.folder = folder
        self.size = size
        with open(os.path.join(folder, split + "{i}.txt")) as file:
            self.rows = [line.split() for line in file]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        name, label = self.rows[index]
        image = np.load(os.path.join(self.folder, name)).astype(np.float32)
        image = normalise{i}(image)
        return torch.from_numpy(image), int(label)


def normalise{i}(image, mean=0.5, std=0.25):
    image = (image - mean) / std
    return np.clip(image, -3, 3){chained}


def make_loader{i}(args, split):
    dataset = Images{i}(args.data, split)
    return DataLoader(dataset, batch_size=args.batch_size, shuffle=split == "train", num_workers=args.workers)


def loss{i}(scores, labels, smoothing=0.1):
    """Cross entropy with label smoothing."""
    classes = scores.size(1)
    log_probabilities = F.log_softmax(scores, dim=1)
    with torch.no_grad():
        target = torch.full_like(scores, smoothing / (classes - 1))
        target.scatter_(1, labels.unsqueeze(1), 1 - smoothing)
    return (-target * log_probabilities).sum(1).mean(){chained_loss}


@torch.no_grad()
def evaluate{i}(model, loader, device):
    model.eval()
    correct, total = 0, 0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        correct += (model(images).argmax(1) == labels).sum().item()
        total += labels.size(0)
    print("accuracy {i}: %.3f" % (correct / total))
{chained_evaluation}    return correct / total


def save_results{i}(folder, results):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "results{i}.json"), "w") as file:
        json.dump(results, file)
{chained_results}'''
ENTRY = '''\
"""Train one of the models."""

import argparse
import os

import torch
from tensorboardX import SummaryWriter

import registry


def get_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--model", default="net0")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--output", default="runs")
    return parser.parse_args()


def train_one_epoch(model, loader, criterion, optimizer, device, epoch, writer):
    model.train()
    for step, (images, labels) in enumerate(loader):
        images, labels = images.to(device), labels.to(device)
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print("epoch %d step %d loss %.4f" % (epoch, step, loss.item()))
            writer.add_scalar("loss", loss.item(), epoch * len(loader) + step)


def main():
    args = get_arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = registry.build_model(args.model).to(device)
    train_loader = registry.build_loader(args, "train")
    val_loader = registry.build_loader(args, "val")
    criterion = registry.build_loss(args.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30)
    os.makedirs(args.output, exist_ok=True)
    writer = SummaryWriter(args.output)
    best = 0.0
    for epoch in range(args.epochs):
        train_one_epoch(model, train_loader, criterion, optimizer, device, epoch, writer)
        accuracy = registry.evaluate(args.model, model, val_loader, device)
        scheduler.step()
        if accuracy > best:
            best = accuracy
            torch.save({"model": model.state_dict(), "epoch": epoch}, os.path.join(args.output, "best.pth"))
            registry.save_results(args.model, args.output, {"accuracy": accuracy})


if __name__ == "__main__":
    main()
'''
MOST_CHOICES = 20
CHOICES = {
    "build_model(name)": "Net{i}()",
    "build_loss(name)": "loss{i}",
    "build_loader(args, split)": "make_loader{i}(args, split)",
    "evaluate(name, model, loader, device)": "evaluate{i}(model, loader, device)",
    "save_results(name, folder, results)": "save_results{i}(folder, results)",
}


def write_project(folder: Path, lines: int) -> tuple[Path, int]:
    """Write a project of about `lines` lines and return its script with the number of its lines."""
    of_a_module = MODULE.count("\n") + 5
    number = max(1, round((lines - ENTRY.count("\n")) / of_a_module))
    ends = {round((index + 1) * number / MOST_CHOICES) - 1 for index in range(MOST_CHOICES)} - {-1}
    texts = {"train.py": ENTRY, "registry.py": _registry(sorted(ends))}
    for i in range(number):
        texts[f"part{i}.py"] = _module(i, is_first=i - 1 in ends or i == 0)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "train.py", sum(text.count("\n") for text in texts.values())


def _module(i: int, is_first: bool) -> str:
    """Return a module that uses the one before it; every fifth model starts a family of its own."""
    if is_first:
        empty = dict.fromkeys(("imports", "chained", "chained_loss", "chained_evaluation", "chained_results"), "")
        return MODULE.format(i=i, base="nn.Module", **empty)
    before = i - 1
    return MODULE.format(
        i=i,
        imports=f"\nimport part{before}\n",
        base="nn.Module" if i % 5 == 0 else f"part{before}.Net{before}",
        chained=f" + part{before}.normalise{before}(image) * 0",
        chained_loss=f" + 0.1 * part{before}.loss{before}(scores, labels)",
        chained_evaluation=f"    part{before}.evaluate{before}(model, loader, device)\n",
        chained_results=f"    part{before}.save_results{before}(folder, results)\n",
    )


def _registry(chosen: list[int]) -> str:
    lines = ['"""Every choice by its name."""', ""]
    for i in chosen:
        lines += [f"from part{i} import Net{i}, evaluate{i}, loss{i}, make_loader{i}, save_results{i}"]
    for signature, result in CHOICES.items():
        name = "args.model" if "args" in signature else "name"
        lines += ["", "", f"def {signature}:"]
        for i in chosen:
            lines += [f'    if {name} == "net{i}":', f"        return {result.format(i=i)}"]
        lines += [f"    raise ValueError({name})"]
    return "\n".join(lines) + "\n"
