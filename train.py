"""Train, test or run a segmentation model on one or many GPUs.

  python train.py --layers 50 --model_type res50_ASPP_lorm               one GPU (or the CPU)
  bash train_torchrun.sh --layers 50 --model_type res50_ASPP_lorm        every GPU of this machine
  torchrun --nproc_per_node=2 --standalone train.py --distributed        the same by hand
  python train.py --task test --resume auto                              IoU per class of the newest run
  python train.py --task predict --resume auto --predict_path photos     masks for a folder of images

Without any argument a small demonstration runs that is sized to this machine (configs/demo_*.yaml).
"""

import math
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
from segmentation.config_file import changed_options, config_text, read_words
from segmentation.curves import log_throughput, log_validation
from segmentation.datasets import ImagesToPredict
from segmentation.losses import cross_entropy_sum, num_valid_pixels
from segmentation.metrics import ConfusionMatrix
from segmentation.options import build_parser, continue_options, parse_options
from segmentation.precision import autocast, gradient_scaler, use_deterministic_algorithms
from segmentation.report import print_classes, print_options, print_summary
from segmentation.schedule import build_scheduler
from segmentation.visualize import colorize, panel_grid, save_index_png
from utils import (
    TrainingState,
    find_checkpoint,
    get_dataloader,
    get_ema,
    get_model,
    get_optimizer,
    open_run,
    print_plan,
    print_results,
    restore_state,
    save_state,
)

CONFIG_WORDS = Path(__file__).resolve().parent / "configs" / "other_names" / "options.yaml"


@rd.job.report_failure
def main(argv=None):
    args = get_arguments(argv)
    rd.setup_distributed(args)
    rd.job.setup_rank_logging(args.log_level)
    checkpoint = find_checkpoint(args)
    if checkpoint:
        continue_options(get_parser(), args, rd.checkpoint.saved_options(checkpoint))
        rd.options.set_options(args)
    if args.deterministic:
        use_deterministic_algorithms()
    rd.random_state.seed_everything(args.seed)
    if rd.is_main_process():
        print_options(*changed_options(get_parser({}), args))
    run_task = {"train": train, "test": test, "predict": predict}[args.task]
    status = run_task(args, checkpoint)
    rd.cleanup_distributed()
    return status or 0


def get_arguments(argv=None):
    """Return the options: those of the command line, else of --config."""
    return parse_options(get_parser(), argv, read_words(CONFIG_WORDS))


def get_parser(environ=None):
    """Return the parser of all options; their defaults come from the environment twins."""
    parser = rd.strategies.add_all_flags(build_parser(__doc__), environ)
    parser.add_argument("--accum_steps", type=int, default=1, help="micro batches per optimizer step (default: 1)")
    parser.add_argument("--sync_bn", action="store_true", help="BatchNorm statistics over all GPUs (default: off)")
    parser.add_argument("--dry_run", action="store_true", help="one step of each kind, writes nothing (default: off)")
    return parser


def train(args, checkpoint):
    """Train to the last epoch and return the exit status: 0, or that of the signal which ended it early."""
    train_loader, val_loader = get_dataloader(args, "train"), get_dataloader(args, "val")  # rd.distribute_loader
    model = get_model(args, rd.get_device())  # rd.distribute_model: DDP, or another strategy
    ema = get_ema(args, model)
    lr = rd.scaled_lr(args.lr, args.accum_steps)
    optimizer = get_optimizer(args, model, lr, train_loader.batch_sampler.batch_size)
    epochs = rd.checkpoint.ResumableEpochs(train_loader, args.accum_steps)
    state = TrainingState(model, ema, optimizer, gradient_scaler(args.amp), epochs)
    if checkpoint:
        restore_state(state, checkpoint, warm_up=lambda: forward_backward(args, state, [next(iter(train_loader))]))
    state.scheduler = build_scheduler(optimizer, lr, args, epochs.steps_per_epoch, epochs.global_step)
    folder, writer = open_run(args, checkpoint, config_text(get_parser(), args), epochs.samples)
    print_plan(args, state, folder, checkpoint)

    started, first_image, confusion = time.perf_counter(), epochs.samples, None
    with rd.job.Interruption() as interruption:
        while epochs.epoch < args.epochs:
            status = train_one_epoch(args, state, folder, writer, interruption)
            if status is not None:
                end_early(args, state, folder, writer)
                return status
            confusion = validate_and_save(args, state, val_loader, folder, writer) or confusion
            if args.dry_run:
                break
    rd.checkpoint.finish_saves()
    writer.close()
    seconds, images = time.perf_counter() - started, epochs.samples - first_image
    print_results(state, folder, confusion, val_loader.dataset.class_names, seconds, images)
    return 0


def train_one_epoch(args, state, folder, writer, interruption):
    """Train on what is left of the epoch; return the exit status that a signal asks for, None without one."""
    state.model.train()
    epochs, status = state.epochs, None
    started, first_image = time.perf_counter(), epochs.samples
    progress = tqdm(
        total=epochs.steps_per_epoch * epochs.global_batch,
        initial=epochs.step * epochs.global_batch,
        unit="img",
        desc=f"epoch {epochs.epoch + 1}/{args.epochs}",
        disable=not rd.is_main_process(),
    )
    for micro_batches in epochs.steps():  # this rank's batches, after rd.set_epoch
        share = forward_backward(args, state, micro_batches)
        figures = rd.job.begin_sum(share, *interruption.votes())  # over the ranks, during the optimizer's step
        optimizer_step(args, state)
        loss, *votes = rd.job.finish_sum(figures)
        check_finite(loss, epochs, folder)
        status = interruption.status_of(votes)
        lr = state.scheduler.get_last_lr()[0]
        progress.set_postfix(loss=f"{loss:.4f}", lr=f"{lr:.2e}", refresh=False)
        progress.update(epochs.global_batch)
        writer.add_scalar("train/loss", loss, epochs.samples)
        writer.add_scalar("train/lr", lr, epochs.samples)
        if status is not None or args.dry_run:
            break
        if is_at_chk_step(args, epochs) and epochs.step < epochs.steps_per_epoch:
            save_state(args, state, folder, writer)  # after the last step validation comes first, and logs its points
    progress.close()
    if epochs.samples > first_image and epochs.step in (0, epochs.steps_per_epoch):  # once per epoch
        log_throughput(writer, epochs.samples - first_image, time.perf_counter() - started, epochs.samples)
    return status


def forward_backward(args, state, micro_batches):
    """Add the gradients of the mean loss over the global batch and return this rank's share of that loss.

    The mean is over all valid pixels of all ranks; gradients are synchronised once, in the last micro batch.
    """
    device = rd.get_device()
    own_valid = sum(num_valid_pixels(batch["label"]) for batch in micro_batches)
    own_images = sum(len(batch["image"]) for batch in micro_batches)
    counts = rd.job.begin_sum(own_valid, own_images)  # over the ranks, during the forward pass
    share = 0.0
    for number, batch in enumerate(micro_batches, start=1):
        image, label, pseudo = (batch[k].to(device, non_blocking=True) for k in ("image", "label", "pseudo"))
        if args.channels_last:
            image = image.contiguous(memory_format=torch.channels_last)
        with rd.strategies.gradient_sync(state.model, enabled=number == len(micro_batches)):
            with autocast(device, args.amp):
                output = state.model(image, pseudo)
            logits, lorm = output if state.model.has_lorm else (output, None)
            pixel_loss = cross_entropy_sum(logits, label, args.label_smooth)
            global_valid, global_images = rd.job.finish_sum(counts)
            loss = args.l_segs * pixel_loss / rd.loss.rank_share(max(global_valid, 1))
            if lorm is not None:
                loss = loss + args.l_lorm * lorm.sum() / rd.loss.rank_share(global_images)
            rd.strategies.backward(state.model, state.scaler.scale(loss))
        share += loss.item() / rd.get_world_size()
    return share


def check_finite(loss, epochs, folder):
    """Raise RuntimeError when the loss is nan or infinite, before a checkpoint is written."""
    if not math.isfinite(loss):
        kept = rd.checkpoint.checkpoints_in(folder)
        raise RuntimeError(
            f"loss is {loss} at step {epochs.step} of epoch {epochs.epoch + 1}; the last good checkpoint "
            f"is {kept[0] if kept else 'none yet'}; use a smaller --lr, --clip_grad 1, or --amp off"
        )


def optimizer_step(args, state):
    """Update the weights from the gradients, then their moving average."""
    if args.clip_grad:
        state.scaler.unscale_(state.optimizer)
        rd.strategies.clip_grad_norm(state.model, args.clip_grad)
    state.scaler.step(state.optimizer)
    state.scaler.update()
    state.optimizer.zero_grad()
    state.scheduler.step()
    if state.ema:
        with rd.strategies.whole_parameters(state.model):
            state.ema.update_parameters(rd.unwrap_model(state.model))


def is_at_chk_step(args, epochs):
    """Return whether --chk_steps asks for a checkpoint after this step."""
    return bool(args.chk_steps) and epochs.global_step % args.chk_steps == 0


def end_early(args, state, folder, writer):
    """Save the position at which a signal has ended the training, and say how to continue."""
    path = save_state(args, state, folder, writer)
    rd.checkpoint.finish_saves()
    writer.close()
    message = f"interrupted in epoch {state.epochs.epoch + 1}, saved {path}; --resume auto continues"
    rd.print_main(message, flush=True)  # whoever asked may kill next


def validate_and_save(args, state, val_loader, folder, writer):
    """Validate and save after an epoch, where it is due; return the confusion matrix of the validation, if any."""
    epochs, confusion, is_best = state.epochs, None, False
    if epochs.epoch > args.val_epoch or args.dry_run:
        confusion, loss, panels = evaluate(args, state.ema.module if state.ema else state.model, val_loader)
        is_best = confusion.miou() > state.best_miou
        state.best_miou = max(state.best_miou, confusion.miou())
        names = val_loader.dataset.class_names  # and rank 0's first images, which are the first of all
        log_validation(writer, confusion, loss, names, panels, epochs.samples)  # retrofit: ignore[RF406]
    is_last = epochs.epoch == args.epochs
    if is_best or is_last or epochs.epoch % args.chk_interval == 0 or is_at_chk_step(args, epochs):
        save_state(args, state, folder, writer, is_best)
    return confusion


@torch.no_grad()
def evaluate(args, model, loader):
    """Return the confusion matrix of all ranks' shares of `loader`, the mean loss, and a picture of its first images.

    The loss is that of training without the extra loss of the *_lorm models. Collective: every rank. Exact at any world
    size: each image counts once.
    """
    model.eval()
    rd.model.broadcast_buffers(model)
    device, confusion, panels = rd.get_device(), ConfusionMatrix(loader.dataset.num_classes), None
    loss, valid = 0.0, 0
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
    global_loss, global_valid = rd.sum_over_ranks(loss, valid)
    if confusion.num_samples != len(loader.dataset) and not args.dry_run:
        raise RuntimeError(f"evaluated {confusion.num_samples} images, not each of {len(loader.dataset)} once")
    return confusion, args.l_segs * global_loss / max(global_valid, 1), panels


def get_trained_model(args, checkpoint):
    """Return the model with the checkpoint's weights, their moving average if it has one."""
    model = get_model(args, rd.get_device())
    rd.checkpoint.load_weights(model, checkpoint.get("ema") or checkpoint["model"], checkpoint["path"])
    rd.print_main(f"weights: {checkpoint['path']}, {checkpoint['epoch']} epoch(s)")
    if not args.dry_run:
        rd.job.keep_rank_log_in(checkpoint["path"].parent)
    return model


def test(args, checkpoint):
    """Print IoU per class on the validation set."""
    loader = get_dataloader(args, "val")
    confusion, *_ = evaluate(args, get_trained_model(args, checkpoint), loader)
    if rd.is_main_process():
        print_classes(confusion, loader.dataset.class_names)


@torch.no_grad()
def predict(args, checkpoint):
    """Write a colour and an index PNG for every image of a folder, the images split across the ranks."""
    device, model = rd.get_device(), get_trained_model(args, checkpoint).eval()
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
        save_index_png(mask, output / f"{batch['name'][0]}_index.png")  # retrofit: ignore[RF406, RF508]
        colorize(mask).save(output / f"{batch['name'][0]}_color.png")  # retrofit: ignore[RF406]
    written = rd.sum_over_ranks(written)
    if rd.is_main_process():
        print_summary("prediction", {"images": written, "folder": output})


if __name__ == "__main__":
    sys.exit(main())
