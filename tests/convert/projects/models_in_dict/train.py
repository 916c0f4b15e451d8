import argparse

import torch
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

import networks


class Trainer:
    def __init__(self, options):
        self.opt = options
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.models = {}
        self.parameters_to_train = []

        self.models["encoder"] = networks.Encoder(8, self.opt.width)
        self.models["encoder"].to(self.device)
        self.parameters_to_train += list(self.models["encoder"].parameters())

        self.models["decoder"] = networks.Decoder(self.opt.width, 8)
        self.models["decoder"].to(self.device)
        self.parameters_to_train += list(self.models["decoder"].parameters())

        if self.opt.use_critic:
            self.models["critic"] = networks.Critic(8, self.opt.width)
            self.models["critic"].to(self.device)
            self.critic_optimizer = optim.SGD(self.models["critic"].parameters(), lr=self.opt.lr)

        self.optimizer = optim.SGD(self.parameters_to_train, lr=self.opt.lr, momentum=0.9)
        data = torch.randn(70, 8, generator=torch.Generator().manual_seed(3))
        self.train_loader = DataLoader(TensorDataset(data[:54]), self.opt.batch_size, shuffle=True)
        self.val_loader = DataLoader(TensorDataset(data[54:]), self.opt.batch_size)

    def set_train(self):
        for m in self.models.values():
            m.train()

    def set_eval(self):
        for m in self.models.values():
            m.eval()

    def train(self):
        for epoch in range(self.opt.epochs):
            self.run_epoch(epoch)
            self.validate(epoch)
            self.save_models()

    def reconstruct(self, x):
        return self.models["decoder"](self.models["encoder"](x))

    def run_epoch(self, epoch):
        self.set_train()
        total, num_samples = 0.0, 0
        for (x,) in self.train_loader:
            x = x.to(self.device)
            if self.opt.use_critic:
                fake = self.reconstruct(x).detach()
                critic_loss = F.softplus(-self.models["critic"](x)).mean() + F.softplus(self.models["critic"](fake)).mean()
                self.critic_optimizer.zero_grad()
                critic_loss.backward()
                self.critic_optimizer.step()

            out = self.reconstruct(x)
            loss = F.mse_loss(out, x)
            if self.opt.use_critic:
                loss = loss + 0.1 * F.softplus(-self.models["critic"](out)).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item() * x.size(0)
            num_samples += x.size(0)
        print("epoch %d train loss %.5f" % (epoch, total / num_samples))

    def validate(self, epoch):
        self.set_eval()
        total = 0.0
        with torch.no_grad():
            for (x,) in self.val_loader:
                x = x.to(self.device)
                total += F.mse_loss(self.reconstruct(x), x, reduction="sum").item()
        print("epoch %d val error %.5f" % (epoch, total / len(self.val_loader.dataset)))

    def save_models(self):
        torch.save({name: model.state_dict() for name, model in self.models.items()}, self.opt.output)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--batch_size", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--use_critic", action="store_true")
    parser.add_argument("--output", default="models.pt")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    Trainer(options).train()


if __name__ == "__main__":
    main()
