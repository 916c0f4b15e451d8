"""Train, test or run a segmentation model on one or many GPUs.

  python train.py --layers 50 --model_type res50_ASPP_lorm               one GPU (or the CPU)
  bash train_torchrun.sh --layers 50 --model_type res50_ASPP_lorm        every GPU of this machine
  torchrun --nproc_per_node=2 --standalone train.py --distributed        the same by hand
  python train.py --task test --resume auto                              IoU per class of the newest run
  python train.py --task predict --resume auto --predict_path photos     masks for a folder of images

Without any argument a small demonstration runs that is sized to this machine (configs/demo_*.yaml).
"""

import math
import os
import sys
import time
from itertools import islice
from pathlib import Path

import torch
from tensorboardX import SummaryWriter
from torch.utils.data import DataLoader
from tqdm import tqdm
from utils import get_dataloader, get_model

from retrofit.distributed import (
    checkpoints_in,
    Interruption,
    ResumableEpochs,
    SilentObject,
    add_distributed_arguments,
    broadcast_buffers,
    broadcast_object,
    cleanup_distributed,
    find_checkpoint,
    is_newest_checkpoint,
    get_device,
    get_rank,
    get_world_size,
    global_mean,
    gradient_sync,
    is_distributed,
    is_main_process,
    load_weights,
    on_main_process,
    plan_batch,
    print_main,
    read_checkpoint,
    reduce_sum,
    reduce_tensor_sum,
    report_failure,
    restore_checkpoint,
    save_position,
    scale_lr,
    seed_everything,
    setup_distributed,
    shard_eval_loader,
    split_random_streams,
    unwrap_model,
)
from segmentation.datasets import ImagesToPredict
from segmentation.ema import ModelEMA
from segmentation.gpu_stats import gpu_scalars
from segmentation.losses import cross_entropy_sum, num_valid_pixels
from segmentation.metrics import ConfusionMatrix
from segmentation.options import build_parser, options_to_save, parse_options
from segmentation.precision import autocast, gradient_scaler
from segmentation.report import print_classes, print_summary
from segmentation.run_folder import new_run_folder, run_folders
from segmentation.schedule import build_scheduler
from segmentation.visualize import colorize, panel, save_index_png

# Options that say where a process runs; everything else is continued by --resume.
PLACE_OPTIONS = ("distributed", "local_rank", "world_size", "dist_url", "dist_backend", "dist_timeout")


@report_failure
def main(argv=None):
    args = get_arguments(argv)
    setup_distributed(args)
    resume = find_resume(args)
    checkpoint = read_checkpoint(resume) if resume else None
    if checkpoint:
        args = get_arguments(argv, checkpoint)
    args.resume = resume
    if args.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    seed_everything(args.seed)
    status = 0
    if args.task == "train":
        status = Trainer(args, checkpoint).train()
    elif args.task == "test":
        test(args, checkpoint)
    else:
        predict(args, checkpoint)
    cleanup_distributed()
    return status


def get_arguments(argv=None, checkpoint=None):
    """Return the options: those of the command line, else of --config, else of the checkpoint that is resumed."""
    parser = add_distributed_arguments(build_parser(__doc__))
    parser.add_argument("--accum_steps", type=int, default=1, help="micro batches per optimizer step (default: 1)")
    parser.add_argument("--sync_bn", action="store_true", help="BatchNorm statistics over the batches of all GPUs")
    parser.add_argument("--dry_run", action="store_true", help="one step and one validation batch; writes nothing")
    return parse_options(parser, argv, checkpoint and checkpoint.get("options"))


def find_resume(args):
    """Return the checkpoint that --resume means; None to start from the beginning."""
    to_train = args.task == "train"
    resume = args.resume or ("" if to_train else "auto")
    return find_checkpoint(resume, run_folders(args.logdir), to_train=to_train) if resume else None


class Trainer:
    """Model, optimizer and data of one training run, on this rank."""

    def __init__(self, args, checkpoint=None):
        self.args = args
        self.device = get_device()
        self.plan = plan_batch(args.batchsize, get_world_size(), args.accum_steps, args.batch)
        self.lr = scale_lr(args.lr, self.plan.global_batch, self.plan.reference_batch, args.lr_scale)
        self.train_loader, self.val_loader = get_dataloader(args, self.plan, "train"), get_dataloader(args, self.plan, "val")
        self.steps_per_epoch = len(self.train_loader) // args.accum_steps
        self.model = get_model(args, self.device)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), self.lr, momentum=args.momentum, weight_decay=args.wdecay
        )
        self.scaler = gradient_scaler(args.amp)
        self.ema = ModelEMA(unwrap_model(self.model), args.ema_decay) if args.ema_decay else None
        split_random_streams(args.seed)
        self.epochs = ResumableEpochs(self.train_loader)
        self.epoch, self.step, self.best_miou = 0, 0, 0.0  # step counts the optimizer steps of this epoch
        self.batches = None  # the rest of an epoch that was interrupted
        if checkpoint:
            self.load(checkpoint)
        self.scheduler = build_scheduler(
            self.optimizer, self.lr, args, self.steps_per_epoch, self.epoch * self.steps_per_epoch + self.step
        )
        self.folder = self.make_folder()
        self.writer = SilentObject() if args.dry_run else on_main_process(SummaryWriter, str(self.folder))

    def make_folder(self):
        """Return the run's folder, the same on every rank: the resumed run's own, or a new one."""
        if self.args.dry_run:
            return Path(self.args.logdir)
        if self.args.resume and is_newest_checkpoint(self.args.resume):
            return self.args.resume.parent
        name = f"{self.args.model_type}_r{self.args.layers}_{self.args.dataset}"
        return broadcast_object(new_run_folder(self.args.logdir, name) if is_main_process() else None)

    def train(self):
        """Train to the last epoch and return the exit status: 0, or that of the signal which ended it early."""
        self.print_plan()
        started, first_images, confusion, votes = time.perf_counter(), self.images, None, []
        with Interruption() as interruption:
            while self.epoch < self.args.epochs:
                votes = self.train_one_epoch(interruption)
                if any(votes):
                    break
                self.epoch, self.step = self.epoch + 1, 0
                best_before = self.best_miou
                if self.epoch > self.args.val_epoch:
                    confusion = self.validate()
                if self.epoch % self.args.chk_interval == 0 or self.epoch == self.args.epochs or self.best_miou > best_before:
                    self.save(is_best=self.best_miou > best_before)
                if self.args.dry_run:
                    break
        self.writer.close()
        seconds = time.perf_counter() - started
        if any(votes):
            path = self.save()
            print_main(f"interrupted in epoch {self.epoch + 1}, saved {path}; continue with --resume auto")
            return interruption.exit_status(votes)
        if is_main_process():
            if confusion:
                print_classes(confusion, self.val_loader.dataset.class_names)
            print_summary(
                "training",
                {
                    "run": self.folder,
                    "epochs": self.epoch,
                    "processes": get_world_size(),
                    "global batch": self.plan.global_batch,
                    "seconds": f"{seconds:.1f}",
                    "images/s": f"{(self.images - first_images) / seconds:.1f}",
                    "best mIoU": f"{self.best_miou:.4f}",
                },
            )
        return 0

    @property
    def images(self):
        """Images trained on so far, over all ranks: the x axis of the curves at any number of GPUs."""
        return (self.epoch * self.steps_per_epoch + self.step) * self.plan.global_batch

    def print_plan(self):
        """Say what is about to run."""
        plan, per_gpu = self.plan, "process" if self.device.type == "cpu" else "GPU"
        print_main(
            f"{self.folder}: {plan.world_size} {per_gpu}(es) on {self.device.type}, global batch {plan.global_batch} = "
            f"{plan.micro_batch} x {plan.world_size} x {plan.accum_steps} accumulation step(s)"
        )
        print_main(f"Effective lr: {self.lr:g} ({self.args.lr_scale} rule: {self.args.lr:g} for a batch of {plan.reference_batch})")

    def train_one_epoch(self, interruption):
        """Train on what is left of the epoch; return the ranks' votes to stop early, all 0 if there are none."""
        self.model.train()
        batches, self.batches = self.batches or self.epochs.epoch(self.epoch), None
        started, first_images, votes = time.perf_counter(), self.images, [0.0]
        progress = tqdm(
            total=self.steps_per_epoch * self.plan.global_batch, initial=self.step * self.plan.global_batch, unit="img",
            desc=f"epoch {self.epoch + 1}/{self.args.epochs}", disable=not is_main_process(),
        )
        while self.step < self.steps_per_epoch and not any(votes):
            window = list(islice(batches, self.args.accum_steps))
            loss, *votes = reduce_sum([self.forward_backward(window), *interruption.votes()])
            self.check_finite(loss)
            self.optimizer_step()
            self.step += 1
            lr = self.scheduler.get_last_lr()[0]
            progress.set_postfix(loss=f"{loss:.4f}", lr=f"{lr:.2e}", refresh=False)
            progress.update(self.plan.global_batch)
            self.writer.add_scalar("train/loss", loss, self.images)
            self.writer.add_scalar("train/lr", lr, self.images)
            if self.args.dry_run:
                break
        progress.close()
        images_per_s = (self.images - first_images) / (time.perf_counter() - started)
        for name, value in {"train/images_per_s": images_per_s, **(gpu_scalars() if self.writer else {})}.items():
            self.writer.add_scalar(name, value, self.images)
        return votes

    def forward_backward(self, window):
        """Add the gradients of the mean loss over the global batch and return this rank's share of that loss.

        `window` holds this rank's micro batches of one optimizer step; gradients are synchronised once, in the last.
        """
        valid, images = reduce_sum(
            [sum(num_valid_pixels(batch["label"]) for batch in window), sum(len(batch["image"]) for batch in window)]
        )
        share = 0.0
        for number, batch in enumerate(window, start=1):
            image, label, pseudo = (
                batch[key].to(self.device, non_blocking=True) for key in ("image", "label", "pseudo")
            )
            if self.args.channels_last:
                image = image.contiguous(memory_format=torch.channels_last)
            with gradient_sync(self.model, enabled=number == len(window)):
                with autocast(self.device, self.args.amp):
                    output = self.model(image, pseudo)
                logits, lorm = output if self.model.has_lorm else (output, None)
                loss = self.args.l_segs * global_mean(cross_entropy_sum(logits, label, self.args.label_smooth), valid)
                if lorm is not None:
                    loss = loss + self.args.l_lorm * global_mean(lorm.sum(), images)
                self.scaler.scale(loss).backward()
            share += loss.item() / get_world_size()
        return share

    def check_finite(self, loss):
        """Raise RuntimeError, on every rank, when the loss is nan or infinite: before the weights are."""
        if not math.isfinite(loss):
            kept = checkpoints_in(self.folder)
            raise RuntimeError(
                f"loss is {loss} at step {self.step + 1} of epoch {self.epoch + 1}; the last good checkpoint is "
                f"{kept[0] if kept else 'none yet'}; use a smaller --lr, --clip_grad 1, or --amp off"
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
            self.ema.update_parameters(unwrap_model(self.model))

    def validate(self):
        """Evaluate on the validation set, log it, and remember the best score."""
        confusion, panels = evaluate(self.ema or self.model, self.val_loader, self.device, self.args)
        self.best_miou = max(self.best_miou, confusion.miou())
        self.writer.add_scalar("val/mIoU", confusion.miou(), self.images)
        self.writer.add_images("val/input_label_prediction", panels, self.images)
        return confusion

    def save(self, is_best=False):
        """Write the checkpoint of this position; every rank calls it."""
        if self.args.dry_run:
            return None
        content = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "scaler": self.scaler,
            "ema": self.ema,
            "step_in_epoch": self.step,
            "best_miou": self.best_miou,
            "rng_state": self.epochs.rng_state(),
            "layout": self.layout(),
            "options": {k: v for k, v in options_to_save(self.args).items() if k not in PLACE_OPTIONS},
        }
        return save_position(self.folder, self.epoch, self.step * self.plan.global_batch, is_best=is_best, **content)

    def load(self, checkpoint):
        """Continue from a checkpoint: bit for bit in the same layout, from the same samples in another one."""
        restore_checkpoint(checkpoint, self.args.resume, self.model, self.optimizer, scaler=self.scaler, ema=self.ema)
        self.epoch, self.step, self.best_miou = (checkpoint[key] for key in ("epoch", "step_in_epoch", "best_miou"))
        before, now = checkpoint["layout"], self.layout()
        if before == now:
            rng_state = checkpoint["rng_states"][get_rank()]
            self.batches = self.epochs.continue_epoch(self.epoch, rng_state, self.step * self.args.accum_steps)
        else:
            changes = ", ".join(f"{key} {before[key]} -> {now[key]}" for key in now if before[key] != now[key])
            print_main(f"notice: resumed with {changes}; augmentation is drawn anew from here on")
            samples = self.step * before["global_batch"]
            self.step = samples // self.plan.global_batch
            self.batches = self.epochs.continue_epoch_elsewhere(self.epoch, samples)

    def layout(self):
        """Return what must be equal for a resumed run to repeat an uninterrupted one bit for bit."""
        return {
            "world_size": get_world_size(),
            "global_batch": self.plan.global_batch,
            "accum_steps": self.args.accum_steps,
            "workers": self.args.workers,
            "process_group": is_distributed(),
        }


@torch.no_grad()
def evaluate(model, loader, device, args):
    """Return the confusion matrix over all ranks' shares of `loader` and panels (N, 3, H, 3W) of its first images.

    Collective: every rank. Exact at any world size: each image counts once.
    """
    model.eval()
    broadcast_buffers(model)
    confusion, panels = ConfusionMatrix(loader.dataset.num_classes), None
    for batch in tqdm(loader, desc="validation", leave=False, disable=not is_main_process()):
        with autocast(device, args.amp):
            prediction = model(batch["image"].to(device)).argmax(1).cpu()
        confusion.update(prediction, batch["label"])
        if panels is None:
            panels = torch.stack([panel(*item) for item in zip(batch["image"][:4], batch["label"], prediction)])
        if args.dry_run:
            break
    confusion.matrix = reduce_tensor_sum(confusion.matrix)
    confusion.num_samples = int(reduce_sum([confusion.num_samples])[0])
    if confusion.num_samples != len(loader.dataset) and not args.dry_run:
        raise RuntimeError(f"evaluated {confusion.num_samples} images of {len(loader.dataset)}; each must count once")
    return confusion, panels


def get_trained_model(args, checkpoint, device):
    """Return the model of the checkpoint --resume, its moving average if it has one."""
    model = get_model(args, device)
    load_weights(model, checkpoint.get("ema") or checkpoint["model"], args.resume)
    print_main(f"weights: {args.resume}, {checkpoint['epoch']} epoch(s)")
    return model


def test(args, checkpoint):
    """Print IoU per class on the validation set."""
    device = get_device()
    loader = get_dataloader(args, plan_batch(args.batchsize, get_world_size(), batch=args.batch), "val")
    confusion, _ = evaluate(get_trained_model(args, checkpoint, device), loader, device, args)
    if is_main_process():
        print_classes(confusion, loader.dataset.class_names)


@torch.no_grad()
def predict(args, checkpoint):
    """Write a colour and an index PNG for every image of a folder, the images shared out over the ranks."""
    device = get_device()
    model = get_trained_model(args, checkpoint, device).eval()
    plan = plan_batch(args.batchsize, get_world_size(), batch=args.batch)
    images = ImagesToPredict(args.predict_path) if args.predict_path else get_dataloader(args, plan, "val").dataset
    output = Path(args.output or args.resume.parent / "predictions")
    output.mkdir(parents=True, exist_ok=True)
    loader = shard_eval_loader(DataLoader(images, num_workers=args.workers))
    for batch in tqdm(loader, desc="predict", disable=not is_main_process()):
        mask = model(batch["image"].to(device)).argmax(1)[0].cpu()
        save_index_png(mask, output / f"{batch['name'][0]}_index.png")
        colorize(mask).save(output / f"{batch['name'][0]}_color.png")
    written = int(reduce_sum([len(loader)])[0])
    if is_main_process():
        print_summary("prediction", {"images": written, "folder": output})


if __name__ == "__main__":
    sys.exit(main())
