"""Train a small classifier of striped images on one or many GPUs.

python train.py --epochs 3
torchrun --standalone --nproc_per_node=2 train.py --epochs 3 --dist_batch global
"""

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from data import NUM_CLASSES, Augmented, Stripes, balanced_weights, prepare_data
from model import SmallNet, lr_factor
from torch.utils.data import DataLoader, WeightedRandomSampler, random_split

import retrofit.distributed as rd


def get_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batchsize", type=int, default=12, help="samples per process and forward pass")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--warmup", type=float, default=0.2, help="share of all steps")
    parser.add_argument("--accum_steps", type=int, default=1, help="batches per optimizer step")
    parser.add_argument("--sampler", choices=("random", "weighted"), default="random")
    parser.add_argument("--amp", choices=("off", "bf16"), default="off")
    parser.add_argument("--patience", type=int, default=5, help="epochs without progress before the end")
    parser.add_argument("--num_samples", type=int, default=135)
    parser.add_argument("--data", default="data", help="folder of the images")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="out")
    parser.add_argument("--resume", default="", help="checkpoint, or auto")
    rd.add_runtime_flags(parser)
    return parser.parse_args()


def get_loaders(args):
    with rd.output.main_process_first():
        path = prepare_data(args.data, args.num_samples)
    dataset = Stripes(path)
    num_val = len(dataset) // 4
    train_set, val_set = random_split(dataset, [len(dataset) - num_val, num_val])
    sampler = None
    if args.sampler == "weighted":
        sampler = WeightedRandomSampler(balanced_weights(dataset.labels[train_set.indices]), len(train_set))
    workers = rd.data.loader_workers(args.workers)
    train_loader = DataLoader(
        Augmented(train_set), args.batchsize, shuffle=sampler is None, sampler=sampler, drop_last=True, **workers
    )
    train_loader = rd.distribute_loader(train_loader, seed=args.seed)
    return train_loader, DataLoader(val_set, args.batchsize, **workers)


def train_one_epoch(model, loader, optimizer, scheduler, device, args):
    model.train()
    total = 0.0
    for number, (image, label) in enumerate(loader, start=1):
        is_last = number % args.accum_steps == 0 or number == len(loader)
        with rd.strategies.gradient_sync(model, enabled=is_last):
            with torch.autocast(device.type, torch.bfloat16, enabled=args.amp == "bf16"):
                loss = F.cross_entropy(model(image.to(device)), label.to(device)) / args.accum_steps
            loss.backward()
        total += loss.item() * args.accum_steps
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    return rd.sum_over_ranks(total) / (len(loader) * rd.get_world_size())


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    correct, count = 0, 0
    for image, label in rd.share_batches(loader):
        correct += (model(image.to(device)).argmax(1).cpu() == label).sum().item()
        count += len(label)
    correct, count = rd.sum_over_ranks(correct, count)
    return correct / count


@rd.job.report_failure
def main():
    args = get_arguments()
    rd.setup_distributed(args)
    device = rd.get_device()
    rd.random_state.seed_everything(args.seed)
    train_loader, val_loader = get_loaders(args)
    model = rd.distribute_model(SmallNet(NUM_CLASSES).to(device))
    lr = rd.scaled_lr(args.lr)
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9, weight_decay=5e-4)
    steps_per_epoch = math.ceil(len(train_loader) / args.accum_steps)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: lr_factor(step, steps_per_epoch, args.epochs, args.warmup)
    )
    out = Path(args.out)
    epoch, best, bad_epochs = 0, 0.0, 0
    saved = rd.collectives.broadcast_object(sorted(out.glob("epoch_*.pt")))
    path = (saved[-1] if saved else None) if args.resume == "auto" else args.resume
    if path:
        checkpoint = rd.load_checkpoint(model, optimizer, path, scheduler=scheduler)
        epoch, best, bad_epochs = checkpoint["epoch"], checkpoint["best"], checkpoint["bad_epochs"]
        if checkpoint["world_size"] == rd.get_world_size():
            rd.random_state.set_rng_state(checkpoint["rng_states"][rd.get_rank()])

    while epoch < args.epochs and bad_epochs < args.patience:
        rd.set_epoch(train_loader, epoch)
        loss = train_one_epoch(model, train_loader, optimizer, scheduler, device, args)
        accuracy = evaluate(model, val_loader, device)
        epoch += 1
        is_best = accuracy > best
        best, bad_epochs = max(best, accuracy), 0 if is_best else bad_epochs + 1
        rd.print_main(f"epoch {epoch}/{args.epochs}: loss {loss:.4f}, accuracy {accuracy:.4f}")
        content = {"scheduler": scheduler, "best": best, "bad_epochs": bad_epochs}
        rd.save_checkpoint(model, optimizer, epoch, out / f"epoch_{epoch:03d}.pt", **content)
        if is_best:
            rd.save_checkpoint(model, optimizer, epoch, out / "best.pt", **content)
    rd.print_main(f"best accuracy {best:.4f}")
    rd.cleanup_distributed()


if __name__ == "__main__":
    main()
