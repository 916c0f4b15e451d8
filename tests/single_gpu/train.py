"""Train, test or run a segmentation model on one GPU.

PYTHONPATH=. python tests/single_gpu/train.py --layers 50 --model_type res50_ASPP_lorm
PYTHONPATH=. python tests/single_gpu/train.py --task test --resume log/001_.../epoch_20.pt
"""

import math
import os
import random
import time
from pathlib import Path

import numpy as np
import torch
from tensorboardX import SummaryWriter
from torch.utils.data import DataLoader
from tqdm import tqdm

from segmentation.datasets import ImagesToPredict
from segmentation.ema import ModelEMA
from segmentation.gpu_stats import gpu_scalars
from segmentation.losses import cross_entropy_sum, num_valid_pixels
from segmentation.metrics import ConfusionMatrix
from segmentation.options import build_parser, options_to_save, parse_options
from segmentation.precision import autocast, gradient_scaler
from segmentation.report import print_classes, print_summary
from segmentation.run_folder import new_run_folder
from segmentation.schedule import build_scheduler
from segmentation.visualize import colorize, panel, save_index_png
from utils import get_dataloader, get_model


def main(argv=None):
    args = get_arguments(argv)
    if args.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    if args.task == "train":
        Trainer(args).train()
    elif args.task == "test":
        test(args)
    else:
        predict(args)


def get_arguments(argv=None):
    """Return the options: those of the command line, else of --config."""
    return parse_options(build_parser(__doc__), argv)


class Trainer:
    """Model, optimizer and data of one training run."""

    def __init__(self, args):
        self.args = args
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.train_loader = get_dataloader(args, "train")
        self.val_loader = get_dataloader(args, "val")
        self.model = get_model(args, self.device)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.wdecay
        )
        self.scaler = gradient_scaler(args.amp)
        self.ema = ModelEMA(self.model, args.ema_decay) if args.ema_decay else None
        self.steps_per_epoch = len(self.train_loader)
        self.epoch, self.step = 0, 0
        self.best_miou = 0.0
        if args.resume:
            self.load(args.resume)
        self.scheduler = build_scheduler(
            self.optimizer, args.lr, args, self.steps_per_epoch, self.epoch * self.steps_per_epoch
        )
        self.folder = new_run_folder(args.logdir, f"{args.model_type}_r{args.layers}_{args.dataset}")
        self.writer = SummaryWriter(str(self.folder))

    @property
    def images(self):
        """Images trained on so far: the x axis of the curves."""
        return (self.epoch * self.steps_per_epoch + self.step) * self.args.batchsize

    def train(self):
        """Train to the last epoch."""
        self.print_plan()
        started, first_images, confusion = time.perf_counter(), self.images, None
        while self.epoch < self.args.epochs:
            self.train_one_epoch()
            confusion = self.validate_and_save() or confusion
        self.writer.close()
        self.print_results(confusion, time.perf_counter() - started, self.images - first_images)

    def train_one_epoch(self):
        """Train on every batch of an epoch."""
        self.model.train()
        started, first_images = time.perf_counter(), self.images
        progress = tqdm(
            total=self.steps_per_epoch * self.args.batchsize,
            unit="img",
            desc=f"epoch {self.epoch + 1}/{self.args.epochs}",
        )
        for batch in self.train_loader:
            self.step += 1
            loss = self.forward_backward(batch)
            self.check_finite(loss)
            self.optimizer_step()
            lr = self.scheduler.get_last_lr()[0]
            progress.set_postfix(loss=f"{loss:.4f}", lr=f"{lr:.2e}", refresh=False)
            progress.update(self.args.batchsize)
            self.writer.add_scalar("train/loss", loss, self.images)
            self.writer.add_scalar("train/lr", lr, self.images)
        progress.close()
        images_per_s = (self.images - first_images) / (time.perf_counter() - started)
        for name, value in {"train/images_per_s": images_per_s, **gpu_scalars()}.items():
            self.writer.add_scalar(name, value, self.images)
        self.epoch, self.step = self.epoch + 1, 0

    def forward_backward(self, batch):
        """Add the gradients of the mean loss over the batch and return that loss.

        The mean is over all valid pixels.
        """
        valid = num_valid_pixels(batch["label"])
        image, label, pseudo = (batch[k].to(self.device, non_blocking=True) for k in ("image", "label", "pseudo"))
        if self.args.channels_last:
            image = image.contiguous(memory_format=torch.channels_last)
        with autocast(self.device, self.args.amp):
            output = self.model(image, pseudo)
        logits, lorm = output if self.model.has_lorm else (output, None)
        pixel_loss = cross_entropy_sum(logits, label, self.args.label_smooth)
        loss = self.args.l_segs * pixel_loss / max(valid, 1)
        if lorm is not None:
            loss = loss + self.args.l_lorm * lorm.mean()
        self.scaler.scale(loss).backward()
        return loss.item()

    def check_finite(self, loss):
        """Raise RuntimeError when the loss is nan or infinite, before the weights are."""
        if not math.isfinite(loss):
            raise RuntimeError(
                f"loss is {loss} at step {self.step} of epoch {self.epoch + 1}; "
                "use a smaller --lr, --clip_grad 1, or --amp off"
            )

    def optimizer_step(self):
        """Update the weights from the gradients."""
        if self.args.clip_grad:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.args.clip_grad)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.scheduler.step()
        if self.ema:
            self.ema.update_parameters(self.model)

    def validate_and_save(self):
        """Validate and save after an epoch, where it is due; return the confusion matrix of the validation, if any."""
        epoch, confusion = self.epoch, None
        if epoch > self.args.val_epoch:
            confusion, panels = evaluate(self.ema or self.model, self.val_loader, self.device, self.args)
            self.best_miou = max(self.best_miou, confusion.miou())
            self.writer.add_scalar("val/mIoU", confusion.miou(), self.images)
            self.writer.add_images("val/input_label_prediction", panels, self.images)
        if epoch % self.args.chk_interval == 0 or epoch == self.args.epochs:
            self.save()
        return confusion

    def save(self):
        """Write the checkpoint of this position."""
        content = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "ema": self.ema and self.ema.state_dict(),
            "best_miou": self.best_miou,
            "epoch": self.epoch,
            "options": options_to_save(self.args),
        }
        torch.save(content, self.folder / f"epoch_{self.epoch}.pt")

    def load(self, path):
        """Continue from a checkpoint."""
        checkpoint = torch.load(path, map_location=self.device)
        self.model.load_state_dict(checkpoint["model"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.scaler.load_state_dict(checkpoint["scaler"])
        if self.ema:
            self.ema.load_state_dict(checkpoint["ema"])
        self.epoch, self.best_miou = checkpoint["epoch"], checkpoint["best_miou"]

    def print_plan(self):
        """Say what is about to run."""
        print(f"{self.folder}: batch {self.args.batchsize} on {self.device.type}, lr {self.args.lr:g}")

    def print_results(self, confusion, seconds, images):
        """Print the final validation and one table of the run."""
        if confusion:
            print_classes(confusion, self.val_loader.dataset.class_names)
        facts = {"run": self.folder, "epochs": self.epoch}
        facts.update({"batch": self.args.batchsize, "seconds": f"{seconds:.1f}"})
        facts.update({"images/s": f"{images / seconds:.1f}", "best mIoU": f"{self.best_miou:.4f}"})
        print_summary("training", facts)


@torch.no_grad()
def evaluate(model, loader, device, args):
    """Return the confusion matrix over `loader` and panels (N, 3, H, 3W) of its first images."""
    model.eval()
    confusion, panels = ConfusionMatrix(loader.dataset.num_classes), None
    for batch in tqdm(loader, desc="validation", leave=False):
        with autocast(device, args.amp):
            prediction = model(batch["image"].to(device)).argmax(1).cpu()
        confusion.update(prediction, batch["label"])
        if panels is None:
            panels = torch.stack([panel(*item) for item in zip(batch["image"][:4], batch["label"], prediction)])
    return confusion, panels


def get_trained_model(args, device):
    """Return the model with the checkpoint's weights, their moving average if it has one."""
    model = get_model(args, device)
    checkpoint = torch.load(args.resume, map_location=device)
    model.load_state_dict(checkpoint.get("ema") or checkpoint["model"])
    print(f"weights: {args.resume}, {checkpoint['epoch']} epoch(s)")
    return model


def test(args):
    """Print IoU per class on the validation set."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = get_dataloader(args, "val")
    confusion, _ = evaluate(get_trained_model(args, device), loader, device, args)
    print_classes(confusion, loader.dataset.class_names)


@torch.no_grad()
def predict(args):
    """Write a colour and an index PNG for every image of a folder."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = get_trained_model(args, device).eval()
    images = ImagesToPredict(args.predict_path) if args.predict_path else get_dataloader(args, "val").dataset
    output = Path(args.output or Path(args.resume).parent / "predictions")
    output.mkdir(parents=True, exist_ok=True)
    loader = DataLoader(images, num_workers=args.workers)
    for batch in tqdm(loader, desc="predict"):
        mask = model(batch["image"].to(device)).argmax(1)[0].cpu()
        save_index_png(mask, output / f"{batch['name'][0]}_index.png")
        colorize(mask).save(output / f"{batch['name'][0]}_color.png")
    print_summary("prediction", {"images": len(loader), "folder": output})


if __name__ == "__main__":
    main()
