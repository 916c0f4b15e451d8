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
from pathlib import Path

if __name__ == "__main__":
    from scripts.launch.missing_dependencies import check_dependencies

    check_dependencies("train.py")

import torch
from torch.utils.data import DataLoader
from tqdm import tqdm

import retrofit.distributed as rd
from segmentation.config_file import changed_options, config_text
from segmentation.curves import CurveWriter, log_options, log_validation
from segmentation.datasets import ImagesToPredict
from segmentation.ema import ModelEMA
from segmentation.gpu_stats import gpu_scalars
from segmentation.losses import cross_entropy_sum, num_valid_pixels
from segmentation.metrics import ConfusionMatrix
from segmentation.options import build_parser, options_to_save, parse_options
from segmentation.precision import autocast, gradient_scaler
from segmentation.report import print_classes, print_options, print_summary
from segmentation.run_folder import replace_text, require_log_folder
from segmentation.schedule import build_scheduler
from segmentation.visualize import colorize, panel_grid, save_index_png
from utils import CONFIG_WORDS, find_checkpoint, get_dataloader, get_model, get_run_folder


@rd.job.report_failure
def main(argv=None):
    args = get_arguments(argv)
    rd.setup_distributed(args)
    rd.job.setup_rank_logging(args.log_level)
    if args.task == "train":
        rd.output.answer_of_main(require_log_folder, args.logdir)
    checkpoint = find_checkpoint(args)
    if checkpoint:
        args = get_arguments(argv, checkpoint)
        rd.options.set_options(args)
    if args.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    rd.random_state.seed_everything(args.seed)
    if rd.is_main_process():
        print_options(*changed_options(get_parser({}), args))
    status = 0
    if args.task == "train":
        status = Trainer(args, checkpoint).train()
    elif args.task == "test":
        test(args, checkpoint)
    else:
        predict(args, checkpoint)
    rd.cleanup_distributed()
    return status


def get_arguments(argv=None, checkpoint=None):
    """Return the options: those of the command line, else of --config, else of the checkpoint that is resumed."""
    saved = rd.checkpoint.saved_options(checkpoint) if checkpoint else None
    return parse_options(get_parser(), argv, saved, CONFIG_WORDS)


def get_parser(environ=None):
    """Return the parser of all options; their defaults come from the environment twins."""
    parser = rd.strategies.add_all_flags(build_parser(__doc__), environ)
    parser.add_argument("--accum_steps", type=int, default=1, help="micro batches per optimizer step (default: 1)")
    parser.add_argument("--sync_bn", action="store_true", help="BatchNorm statistics over all GPUs (default: off)")
    parser.add_argument("--dry_run", action="store_true", help="one step of each kind, writes nothing (default: off)")
    return parser


class Trainer:
    """Model, optimizer and data of one training run, on this rank."""

    def __init__(self, args, checkpoint=None):
        self.args = args
        self.device = rd.get_device()
        self.train_loader = get_dataloader(args, "train")
        self.val_loader = get_dataloader(args, "val")
        self.global_batch = rd.data.samples_per_step(args.batchsize, args.accum_steps)
        self.model = get_model(args, self.device)
        self.lr = rd.scaled_lr(args.lr, args.accum_steps)
        self.make_ema()
        optimizer = torch.optim.SGD(self.model.parameters(), self.lr, momentum=args.momentum, weight_decay=args.wdecay)
        self.optimizer = rd.strategies.wrap_optimizer(
            self.model,
            optimizer,
            micro_batch=self.train_loader.batch_size,
            accum_steps=args.accum_steps,
            amp=args.amp,
            clip_grad=args.clip_grad,
        )
        self.scaler = gradient_scaler(args.amp)
        self.epochs = rd.checkpoint.ResumableEpochs(self.train_loader, args.accum_steps)
        self.best_miou, self.continues = 0.0, None
        self.images_before, self.steps_before = 0, 0  # of the checkpoint that is continued
        if checkpoint:
            self.load(checkpoint)
        self.scheduler = build_scheduler(
            self.optimizer, self.lr, args, self.epochs.steps_per_epoch, self.epochs.global_step
        )
        self.folder = get_run_folder(args, checkpoint)
        if not args.dry_run:
            self.save_options()
            rd.job.keep_rank_log_in(self.folder)
        self.writer = rd.output.SilentObject() if args.dry_run else rd.output.on_main_process(self.make_writer)

    def make_ema(self):
        """Create the moving average of the weights, if there is to be one.

        A sharded model cannot be copied: its average is another one, sharded in the same way.
        """
        self.ema = None
        if self.args.ema_decay:
            twin = get_model(self.args, self.device) if rd.strategies.is_sharded(self.model) else None
            self.ema = ModelEMA(rd.unwrap_model(self.model), self.args.ema_decay, twin and rd.unwrap_model(twin))

    def save_options(self):
        """Write config.yaml into the run's folder: --config takes it and makes the same training again."""
        if rd.is_main_process():
            replace_text(self.folder / "config.yaml", config_text(get_parser(), self.args))

    def make_writer(self):
        """Return the writer; what an interrupted run logged after its checkpoint is logged again and replaced."""
        is_continued = self.images or any(self.folder.glob("events.*"))
        writer = CurveWriter(self.folder, self.images + 1 if is_continued else None)
        log_options(writer, config_text(get_parser(), self.args), self.images + 1)
        return writer

    @property
    def images(self):
        """Images trained on so far, over all ranks: the x axis of the curves, the same at any number of GPUs."""
        return self.images_before + (self.epochs.global_step - self.steps_before) * self.global_batch

    def train(self):
        """Train to the last epoch and return the exit status: 0, or that of the signal which ended it early."""
        self.print_plan()
        started, first_images, confusion = time.perf_counter(), self.images, None
        with rd.job.Interruption() as interruption:
            while self.epochs.epoch < self.args.epochs:
                status = self.train_one_epoch(interruption)
                if status is not None:
                    path = self.save()
                    rd.checkpoint.finish_saves()
                    self.writer.close()
                    message = f"interrupted in epoch {self.epochs.epoch + 1}, saved {path}; --resume auto continues"
                    rd.print_main(message, flush=True)  # whoever asked may kill next
                    return status
                confusion = self.validate_and_save() or confusion
                if self.args.dry_run:
                    break
        rd.checkpoint.finish_saves()
        self.writer.close()
        if rd.is_main_process():
            self.print_results(confusion, time.perf_counter() - started, self.images - first_images)
        return 0

    def train_one_epoch(self, interruption):
        """Train on what is left of the epoch; return the exit status that a signal asks for, None without one."""
        self.model.train()
        started, first_images, status = time.perf_counter(), self.images, None
        progress = tqdm(
            total=self.epochs.steps_per_epoch * self.global_batch,
            initial=self.epochs.step * self.global_batch,
            unit="img",
            desc=f"epoch {self.epochs.epoch + 1}/{self.args.epochs}",
            disable=not rd.is_main_process(),
        )
        for micro_batches in self.epochs.steps():
            loss = rd.reduce_total(self.forward_backward(micro_batches))
            status = interruption.agreed_status()
            self.check_finite(loss)
            self.optimizer_step()
            lr = self.scheduler.get_last_lr()[0]
            progress.set_postfix(loss=f"{loss:.4f}", lr=f"{lr:.2e}", refresh=False)
            progress.update(self.global_batch)
            self.writer.add_scalar("train/loss", loss, self.images)
            self.writer.add_scalar("train/lr", lr, self.images)
            if status is not None or self.args.dry_run:
                break
            if self.is_at_chk_step() and self.epochs.step < self.epochs.steps_per_epoch:
                self.save()  # after the last one validation comes first, or its points would be drawn twice
        progress.close()
        if self.images > first_images and self.epochs.step in (0, self.epochs.steps_per_epoch):  # once per epoch
            images_per_s = (self.images - first_images) / (time.perf_counter() - started)
            for name, value in {"train/images_per_s": images_per_s, **(gpu_scalars() if self.writer else {})}.items():
                self.writer.add_scalar(name, value, self.images)
        return status

    def is_at_chk_step(self):
        """Return whether --chk_steps asks for a checkpoint after this step."""
        return bool(self.args.chk_steps) and self.epochs.global_step % self.args.chk_steps == 0

    def forward_backward(self, micro_batches):
        """Add the gradients of the mean loss over the global batch and return this rank's share of that loss.

        The mean is over all valid pixels of all ranks; gradients are synchronised once, in the last micro batch.
        """
        valid = rd.loss.batch_count(sum(num_valid_pixels(batch["label"]) for batch in micro_batches))
        images = rd.loss.batch_count(sum(len(batch["image"]) for batch in micro_batches))
        share = 0.0
        for number, batch in enumerate(micro_batches, start=1):
            image, label, pseudo = (batch[k].to(self.device, non_blocking=True) for k in ("image", "label", "pseudo"))
            if self.args.channels_last:
                image = image.contiguous(memory_format=torch.channels_last)
            with rd.strategies.gradient_sync(self.model, enabled=number == len(micro_batches)):
                with autocast(self.device, self.args.amp):
                    output = self.model(image, pseudo)
                logits, lorm = output if self.model.has_lorm else (output, None)
                pixel_loss = cross_entropy_sum(logits, label, self.args.label_smooth)
                loss = self.args.l_segs * pixel_loss / rd.loss.rank_share(max(valid, 1))
                if lorm is not None:
                    loss = loss + self.args.l_lorm * lorm.sum() / rd.loss.rank_share(images)
                rd.strategies.backward(self.model, self.scaler.scale(loss))
            share += loss.item() / rd.get_world_size()
        return share

    def check_finite(self, loss):
        """Raise RuntimeError when the loss is nan or infinite, before the weights are."""
        if not math.isfinite(loss):
            kept = rd.checkpoint.checkpoints_in(self.folder)
            raise RuntimeError(
                f"loss is {loss} at step {self.epochs.step} of epoch {self.epochs.epoch + 1}; the last good checkpoint "
                f"is {kept[0] if kept else 'none yet'}; use a smaller --lr, --clip_grad 1, or --amp off"
            )

    def optimizer_step(self):
        """Update the weights from the gradients."""
        if self.args.clip_grad:
            self.scaler.unscale_(self.optimizer)
            rd.strategies.clip_grad_norm(self.model, self.args.clip_grad)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.scheduler.step()
        if self.ema:
            with rd.strategies.whole_parameters(self.model):
                self.ema.update_parameters(rd.unwrap_model(self.model))

    def validate_and_save(self):
        """Validate and save after an epoch, where it is due; return the confusion matrix of the validation, if any."""
        epoch, confusion, is_best = self.epochs.epoch, None, False
        if epoch > self.args.val_epoch or self.args.dry_run:
            confusion, loss, panels = evaluate(
                self.ema.module if self.ema else self.model, self.val_loader, self.device, self.args
            )
            is_best = confusion.miou() > self.best_miou
            self.best_miou = max(self.best_miou, confusion.miou())
            names = self.val_loader.dataset.class_names
            log_validation(self.writer, confusion, loss, names, panels, self.images)  # retrofit: ignore[RF406]
        if is_best or epoch % self.args.chk_interval == 0 or epoch == self.args.epochs or self.is_at_chk_step():
            self.save(is_best)
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
            "best_miou": self.best_miou,
            "images": self.images,
            "position": self.epochs,
            "rng_state": self.epochs.rng_state(),
            "options": options_to_save(self.args),
        }
        self.writer.flush()  # the points up to here, which a resumed run does not draw again
        samples = self.epochs.step * self.global_batch
        return rd.checkpoint.save_position(self.folder, self.epochs.epoch, samples, is_best=is_best, **content)

    def load(self, checkpoint):
        """Continue from a checkpoint: bit for bit, unless the number of processes or the batch has changed."""
        rd.checkpoint.restore_checkpoint(
            checkpoint,
            checkpoint["path"],
            self.model,
            self.optimizer,
            warm_up=lambda: self.forward_backward([next(iter(self.train_loader))]),
            scaler=self.scaler,
            ema=self.ema,
        )
        self.best_miou = checkpoint["best_miou"]
        self.continues = checkpoint["path"]
        changes = self.epochs.resume(checkpoint["position"], checkpoint["rng_states"])
        self.images_before, self.steps_before = checkpoint.get("images", self.images), self.epochs.global_step
        if changes:
            shown = ", ".join(f"{name} {before} -> {now}" for name, (before, now) in changes.items())
            rd.print_main(f"notice: resumed with {shown}; augmentation is drawn anew from here on")

    def print_plan(self):
        """Say what is about to run."""
        world_size, batch, steps = rd.get_world_size(), self.train_loader.batch_size, self.args.accum_steps
        unit = "process(es)" if self.device.type == "cpu" else "GPU(s)"
        strategy = rd.strategies.resolve_strategy(self.args.strategy)
        reference = self.args.batchsize
        rd.print_main(
            f"{self.folder}: {world_size} {unit}, {strategy}, global batch {self.global_batch} = "
            f"{batch} per process x {world_size} x {steps} accumulation step(s)\n"
            f"Effective lr: {self.lr:g} ({self.args.lr_scale}: {self.args.lr:g} for a batch of {reference})"
        )
        if self.continues:
            done = f"{self.epochs.epoch} of {self.args.epochs} epoch(s), {self.epochs.step} step(s) of the next"
            rd.print_main(f"resumed from {self.continues}: {done}")

    def print_results(self, confusion, seconds, images):
        """Print the final validation and one table of the run."""
        if confusion:
            print_classes(confusion, self.val_loader.dataset.class_names)
        facts = {"run": self.folder, "epochs": self.epochs.epoch, "processes": rd.get_world_size()}
        facts.update({"global batch": self.global_batch, "seconds": f"{seconds:.1f}"})
        facts.update({"images/s": f"{images / seconds:.1f}", "best mIoU": f"{self.best_miou:.4f}"})
        print_summary("training", facts)


@torch.no_grad()
def evaluate(model, loader, device, args):
    """Return the confusion matrix of all ranks' shares of `loader`, the mean loss, and a picture of its first images.

    The loss is that of training without the extra loss of the *_lorm models. Collective: every rank. Exact at any world
    size: each image counts once.
    """
    model.eval()
    rd.model.broadcast_buffers(model)
    confusion, panels, loss, valid = ConfusionMatrix(loader.dataset.num_classes), None, 0.0, 0
    batches = rd.strategies.EvaluationBatches(loader, model, most=1 if args.dry_run else None)
    for batch in tqdm(batches, desc="validation", leave=False, disable=not rd.is_main_process()):
        with autocast(device, args.amp):
            logits = model(batch["image"].to(device))
        prediction = logits.argmax(1).cpu()
        confusion.update(prediction, batch["label"])
        loss += cross_entropy_sum(logits, batch["label"].to(device), args.label_smooth).item()
        valid += num_valid_pixels(batch["label"])
        if panels is None:
            panels = panel_grid(batch["image"][:4], batch["label"], prediction)
    confusion.matrix, confusion.num_samples = rd.sum_over_ranks(confusion.matrix, confusion.num_samples)
    loss, valid = rd.sum_over_ranks(loss, valid)
    if confusion.num_samples != len(loader.dataset) and not args.dry_run:
        raise RuntimeError(f"evaluated {confusion.num_samples} images, not each of {len(loader.dataset)} once")
    return confusion, args.l_segs * loss / max(valid, 1), panels


def get_trained_model(args, checkpoint, device):
    """Return the model with the checkpoint's weights, their moving average if it has one."""
    model = get_model(args, device)
    rd.checkpoint.load_weights(model, checkpoint.get("ema") or checkpoint["model"], checkpoint["path"])
    rd.print_main(f"weights: {checkpoint['path']}, {checkpoint['epoch']} epoch(s)")
    if not args.dry_run:
        rd.job.keep_rank_log_in(checkpoint["path"].parent)
    return model


def test(args, checkpoint):
    """Print IoU per class on the validation set."""
    device = rd.get_device()
    loader = get_dataloader(args, "val")
    confusion, *_ = evaluate(get_trained_model(args, checkpoint, device), loader, device, args)
    if rd.is_main_process():
        print_classes(confusion, loader.dataset.class_names)


@torch.no_grad()
def predict(args, checkpoint):
    """Write a colour and an index PNG for every image of a folder, the images split across the ranks."""
    device = rd.get_device()
    model = get_trained_model(args, checkpoint, device).eval()
    images = ImagesToPredict(args.predict_path) if args.predict_path else get_dataloader(args, "val").dataset
    output = Path(args.output or checkpoint["path"].parent / "predictions")
    loader, written = DataLoader(images, **rd.data.loader_workers(args.workers)), 0
    batches = rd.strategies.EvaluationBatches(loader, model, most=1 if args.dry_run else None)
    for batch in tqdm(batches, desc="predict", disable=not rd.is_main_process()):
        mask = model(batch["image"].to(device)).argmax(1)[0].cpu()
        if args.dry_run:
            return
        written += 1
        output.mkdir(parents=True, exist_ok=True)  # retrofit: ignore[RF501]  every rank writes its share there
        save_index_png(mask, output / f"{batch['name'][0]}_index.png")  # retrofit: ignore[RF406]
        colorize(mask).save(output / f"{batch['name'][0]}_color.png")  # retrofit: ignore[RF406]
    written = rd.sum_over_ranks(written)
    if rd.is_main_process():
        print_summary("prediction", {"images": written, "folder": output})


if __name__ == "__main__":
    sys.exit(main())
