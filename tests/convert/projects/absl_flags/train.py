"""Segment one-dimensional signals into silence and speech.

python train.py --epochs=2 --workdir=run
"""
import json
import os

import torch
import torch.nn.functional as F
from absl import app, flags, logging
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FLAGS = flags.FLAGS
flags.DEFINE_string("workdir", "run", "Folder of the run.")
flags.DEFINE_integer("epochs", 2, "Number of epochs.")
flags.DEFINE_integer("batch_size", 12, "Batch size.")
flags.DEFINE_float("learning_rate", 0.05, "Learning rate.")
flags.DEFINE_bool("resume", False, "Continue from the checkpoint in --workdir.")
LENGTH, CHANNELS = 16, 4


def signals(number, seed):
    generator = torch.Generator().manual_seed(seed)
    speech = (torch.rand(number, LENGTH, generator=generator) > 0.6).float()
    noise = 0.3 * torch.randn(number, LENGTH, generator=generator)
    return TensorDataset((speech + noise).unsqueeze(1), speech)


class Detector(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv1d(1, CHANNELS, 3, padding=1), nn.ReLU(), nn.Conv1d(CHANNELS, 1, 3, padding=1), nn.Flatten()
        )


@torch.no_grad()
def error_rate(model, loader):
    model.eval()
    wrong = total = 0
    for signal, speech in loader:
        wrong += ((model(signal) > 0).float() != speech).sum().item()
        total += speech.numel()
    return wrong / total


def main(argv):
    if len(argv) > 1:
        raise app.UsageError("Too many arguments.")
    torch.manual_seed(3)
    os.makedirs(FLAGS.workdir, exist_ok=True)
    with open(os.path.join(FLAGS.workdir, "flags.json"), "w") as file:
        json.dump(FLAGS.flag_values_dict(), file, default=str)
    logging.set_verbosity(logging.WARNING)

    train_loader = DataLoader(signals(60, 1), batch_size=FLAGS.batch_size, shuffle=True)
    valid_loader = DataLoader(signals(28, 2), batch_size=FLAGS.batch_size)
    model = Detector()
    optimizer = torch.optim.Adam(model.parameters(), lr=FLAGS.learning_rate)
    first = 0
    path = os.path.join(FLAGS.workdir, "checkpoint.pt")
    if FLAGS.resume:
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1

    for epoch in range(first, FLAGS.epochs):
        model.train()
        for signal, speech in train_loader:
            loss = F.binary_cross_entropy_with_logits(model(signal), speech)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.5f}, error rate {error_rate(model, valid_loader):.4f}")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, path)


if __name__ == "__main__":
    app.run(main)
