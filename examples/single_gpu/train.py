"""Train, test or run a segmentation model on one GPU.

  PYTHONPATH=. python examples/single_gpu/train.py --layers 50 --model_type res50_ASPP_lorm
"""

import random
import time
from pathlib import Path

import numpy as np
import torch
from tensorboardX import SummaryWriter
from torch.utils.data import DataLoader
from tqdm import tqdm
from utils import get_dataloader, get_model

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


def main(argv=None):
    args = get_arguments(argv)
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
    return parse_options(build_parser(__doc__), argv)


class Trainer:
    """Model, optimizer and data of one training run."""

    def __init__(self, args):
        self.args = args
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.train_loader, self.val_loader = get_dataloader(args, "train"), get_dataloader(args, "val")
        self.steps_per_epoch = len(self.train_loader)
        self.model = get_model(args, self.device)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.wdecay
        )
        self.scaler = gradient_scaler(args.amp)
        self.ema = ModelEMA(self.model, args.ema_decay) if args.ema_decay else None
        self.epoch, self.best_miou = 0, 0.0
        if args.resume:
            self.load(args.resume)
        self.scheduler = build_scheduler(
            self.optimizer, args.lr, args, self.steps_per_epoch, self.epoch * self.steps_per_epoch
        )
        self.folder = new_run_folder(args.logdir, f"{args.model_type}_r{args.layers}_{args.dataset}")
        self.writer = SummaryWriter(str(self.folder))

    def train(self):
        """Train to the last epoch."""
        started, confusion = time.perf_counter(), None
        while self.epoch < self.args.epochs:
            self.train_one_epoch()
            self.epoch += 1
            if self.epoch > self.args.val_epoch:
                confusion = self.validate()
            if self.epoch % self.args.chk_interval == 0 or self.epoch == self.args.epochs:
                self.save(self.folder / f"epoch_{self.epoch}.pt")
        self.writer.close()
        if confusion:
            print_classes(confusion, self.val_loader.dataset.class_names)
        print_summary(
            "training",
            {
                "run": self.folder,
                "epochs": self.epoch,
                "seconds": f"{time.perf_counter() - started:.1f}",
                "best mIoU": f"{self.best_miou:.4f}",
            },
        )

    def train_one_epoch(self):
        """Train on every batch of an epoch."""
        self.model.train()
        images = self.epoch * self.steps_per_epoch * self.args.batchsize
        started, first_images = time.perf_counter(), images
        progress = tqdm(
            total=self.steps_per_epoch * self.args.batchsize, unit="img", desc=f"epoch {self.epoch + 1}/{self.args.epochs}"
        )
        for batch in self.train_loader:
            loss = self.forward_backward(batch)
            self.optimizer_step()
            images += self.args.batchsize
            lr = self.scheduler.get_last_lr()[0]
            progress.set_postfix(loss=f"{loss:.4f}", lr=f"{lr:.2e}", refresh=False)
            progress.update(self.args.batchsize)
            self.writer.add_scalar("train/loss", loss, images)
            self.writer.add_scalar("train/lr", lr, images)
        progress.close()
        images_per_s = (images - first_images) / (time.perf_counter() - started)
        for name, value in {"train/images_per_s": images_per_s, **gpu_scalars()}.items():
            self.writer.add_scalar(name, value, images)

    def forward_backward(self, batch):
        """Add the gradients of the mean loss over a batch and return that loss."""
        image, label, pseudo = (batch[key].to(self.device, non_blocking=True) for key in ("image", "label", "pseudo"))
        if self.args.channels_last:
            image = image.contiguous(memory_format=torch.channels_last)
        with autocast(self.device, self.args.amp):
            output = self.model(image, pseudo)
        logits, lorm = output if self.model.has_lorm else (output, None)
        loss = self.args.l_segs * cross_entropy_sum(logits, label, self.args.label_smooth) / max(num_valid_pixels(label), 1)
        if lorm is not None:
            loss = loss + self.args.l_lorm * lorm.mean()
        self.scaler.scale(loss).backward()
        return loss.item()

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

    def validate(self):
        """Evaluate on the validation set, log it, and remember the best score."""
        confusion, panels = evaluate(self.ema or self.model, self.val_loader, self.device, self.args)
        images = self.epoch * self.steps_per_epoch * self.args.batchsize
        self.best_miou = max(self.best_miou, confusion.miou())
        self.writer.add_scalar("val/mIoU", confusion.miou(), images)
        self.writer.add_images("val/input_label_prediction", panels, images)
        return confusion

    def save(self, path):
        """Write a checkpoint."""
        content = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "epoch": self.epoch,
            "best_miou": self.best_miou,
            "options": options_to_save(self.args),
        }
        torch.save(content, path)

    def load(self, path):
        """Continue from a checkpoint."""
        content = torch.load(path, map_location=self.device)
        self.model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.epoch, self.best_miou = content["epoch"], content["best_miou"]


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
    """Return the model of the checkpoint --resume."""
    model = get_model(args, device)
    model.load_state_dict(torch.load(args.resume, map_location=device)["model"])
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
    for batch in tqdm(DataLoader(images, num_workers=args.workers), desc="predict"):
        mask = model(batch["image"].to(device)).argmax(1)[0].cpu()
        save_index_png(mask, output / f"{batch['name'][0]}_index.png")
        colorize(mask).save(output / f"{batch['name'][0]}_color.png")
    print_summary("prediction", {"images": len(images), "folder": output})


if __name__ == "__main__":
    main()
