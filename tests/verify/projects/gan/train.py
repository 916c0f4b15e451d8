"""Train a small GAN on one or many GPUs.

python train.py --epochs 3
torchrun --standalone --nproc_per_node=2 train.py --epochs 3 --dist_batch global
"""

import argparse
import os

import torch
import torch.nn.functional as F
from data import Spots
from model import NUM_NOISE, Discriminator, Generator
from samples import save_samples
from tensorboardX import SummaryWriter
from torch.utils.data import DataLoader

import retrofit.distributed as rd


def get_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batchsize", type=int, default=12, help="images per process")
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--num_images", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="out")
    parser.add_argument("--resume", default="", help="checkpoint")
    rd.add_runtime_flags(parser)
    return parser.parse_args()


def train_one_step(generator, discriminator, g_optimizer, d_optimizer, real):
    fake = generator(torch.randn(len(real), NUM_NOISE, device=real.device))
    real_score, fake_score = discriminator(real), discriminator(fake.detach())
    d_loss = F.softplus(-real_score).mean() + F.softplus(fake_score).mean()
    d_optimizer.zero_grad()
    d_loss.backward()
    d_optimizer.step()

    # The discriminator's gradients of this part are thrown away: no need to synchronise them.
    with rd.strategies.gradient_sync(discriminator, enabled=False):
        g_loss = F.softplus(-discriminator(fake)).mean()
        g_optimizer.zero_grad()
        g_loss.backward()
    g_optimizer.step()
    values = {
        "loss/discriminator": d_loss.item(),
        "loss/generator": g_loss.item(),
        "real_share": (real_score > 0).float().mean().item(),
    }
    return rd.reduce_dict(values)


@rd.job.report_failure
def main():
    args = get_arguments()
    rd.setup_distributed(args)
    device = rd.get_device()
    rd.random_state.seed_everything(args.seed)
    loader = DataLoader(Spots(args.num_images), args.batchsize, shuffle=True, drop_last=True)
    loader = rd.distribute_loader(loader, seed=args.seed)
    generator = rd.distribute_model(Generator().to(device))
    discriminator = rd.distribute_model(Discriminator().to(device))
    lr = rd.scaled_lr(args.lr)
    g_optimizer = torch.optim.Adam(generator.parameters(), lr, betas=(0.5, 0.999))
    d_optimizer = torch.optim.Adam(discriminator.parameters(), lr, betas=(0.5, 0.999))
    first_epoch = 0
    if args.resume:
        others = {"discriminator": discriminator, "d_optimizer": d_optimizer}
        checkpoint = rd.load_checkpoint(generator, g_optimizer, args.resume, **others)
        first_epoch = checkpoint["epoch"]
        if checkpoint["world_size"] == rd.get_world_size():
            rd.random_state.set_rng_state(checkpoint["rng_states"][rd.get_rank()])

    if rd.is_main_process():
        os.makedirs(args.out, exist_ok=True)
    writer = rd.output.on_main_process(SummaryWriter, args.out)
    global_batch = rd.data.samples_per_step(args.batchsize)
    num_images = first_epoch * len(loader) * global_batch
    for epoch in range(first_epoch, args.epochs):
        rd.set_epoch(loader, epoch)
        sums = {}
        for real in loader:
            values = train_one_step(generator, discriminator, g_optimizer, d_optimizer, real.to(device))
            num_images += global_batch
            for name, value in values.items():
                writer.add_scalar(name, value, num_images)
                sums[name] = sums.get(name, 0.0) + value
        shown = ", ".join(f"{name} {total / len(loader):.4f}" for name, total in sums.items())
        rd.print_main(f"epoch {epoch + 1}/{args.epochs}: {shown}")
        if rd.is_main_process():
            save_samples(rd.unwrap_model(generator), f"{args.out}/samples_{epoch + 1:03d}.png")
        rd.save_checkpoint(
            generator,
            g_optimizer,
            epoch + 1,
            f"{args.out}/epoch_{epoch + 1:03d}.pt",
            discriminator=discriminator,
            d_optimizer=d_optimizer,
        )
    writer.close()
    rd.cleanup_distributed()


if __name__ == "__main__":
    main()
