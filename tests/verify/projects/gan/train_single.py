"""Train a small GAN on one GPU.

python train_single.py --epochs 3
python train_single.py --epochs 6 --resume out/epoch_003.pt
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


def get_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batchsize", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--num_images", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="out")
    parser.add_argument("--resume", default="", help="checkpoint")
    return parser.parse_args()


def train_one_step(generator, discriminator, g_optimizer, d_optimizer, real):
    fake = generator(torch.randn(len(real), NUM_NOISE, device=real.device))
    real_score, fake_score = discriminator(real), discriminator(fake.detach())
    d_loss = F.softplus(-real_score).mean() + F.softplus(fake_score).mean()
    d_optimizer.zero_grad()
    d_loss.backward()
    d_optimizer.step()

    g_loss = F.softplus(-discriminator(fake)).mean()
    g_optimizer.zero_grad()
    g_loss.backward()
    g_optimizer.step()
    return {
        "loss/discriminator": d_loss.item(),
        "loss/generator": g_loss.item(),
        "real_share": (real_score > 0).float().mean().item(),
    }


def main():
    args = get_arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(args.seed)
    loader = DataLoader(Spots(args.num_images), args.batchsize, shuffle=True, drop_last=True)
    generator, discriminator = Generator().to(device), Discriminator().to(device)
    g_optimizer = torch.optim.Adam(generator.parameters(), args.lr, betas=(0.5, 0.999))
    d_optimizer = torch.optim.Adam(discriminator.parameters(), args.lr, betas=(0.5, 0.999))
    first_epoch = 0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location=device)
        generator.load_state_dict(checkpoint["model"])
        discriminator.load_state_dict(checkpoint["discriminator"])
        g_optimizer.load_state_dict(checkpoint["optimizer"])
        d_optimizer.load_state_dict(checkpoint["d_optimizer"])
        first_epoch = checkpoint["epoch"]

    os.makedirs(args.out, exist_ok=True)
    writer = SummaryWriter(args.out)
    num_images = first_epoch * len(loader) * args.batchsize
    for epoch in range(first_epoch, args.epochs):
        sums = {}
        for real in loader:
            values = train_one_step(generator, discriminator, g_optimizer, d_optimizer, real.to(device))
            num_images += args.batchsize
            for name, value in values.items():
                writer.add_scalar(name, value, num_images)
                sums[name] = sums.get(name, 0.0) + value
        shown = ", ".join(f"{name} {total / len(loader):.4f}" for name, total in sums.items())
        print(f"epoch {epoch + 1}/{args.epochs}: {shown}")
        save_samples(generator, f"{args.out}/samples_{epoch + 1:03d}.png")
        content = {
            "model": generator.state_dict(),
            "optimizer": g_optimizer.state_dict(),
            "epoch": epoch + 1,
            "discriminator": discriminator.state_dict(),
            "d_optimizer": d_optimizer.state_dict(),
        }
        torch.save(content, f"{args.out}/epoch_{epoch + 1:03d}.pt")
    writer.close()


if __name__ == "__main__":
    main()
