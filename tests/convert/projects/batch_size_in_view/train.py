# is an image intact or are its pixels shuffled?
import os
import torch
import torch.nn as nn
from torch.utils.data import Dataset, DataLoader

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

# settings
n_input = 100    # 10x10
n_hidden = 40
epochs = 2       # 200 for the real thing
batch_size = 12
lr = 0.002
out_dir = 'ckpt'

torch.manual_seed(0)

if not os.path.exists(out_dir):
    os.makedirs(out_dir)


class StrokeDataset(Dataset):
    def __init__(self, n, seed):
        gen = torch.Generator().manual_seed(seed)
        self.images = torch.rand(n, 1, 10, 10, generator=gen) * 0.2
        start = torch.randint(0, 7, (n, 2), generator=gen)
        for k in range(n):
            r, c = start[k].tolist()
            self.images[k, 0, r:r + 3, :] += 0.5
            self.images[k, 0, :, c:c + 2] += 0.3
        self.kind = start[:, 0]

    def __len__(self):
        return self.images.size(0)

    def __getitem__(self, k):
        return self.images[k], self.kind[k]


train_loader = DataLoader(dataset=StrokeDataset(80, 3), batch_size=batch_size, shuffle=True, drop_last=True)
test_loader = DataLoader(dataset=StrokeDataset(40, 4), batch_size=batch_size, shuffle=False)

net = nn.Sequential(
    nn.Linear(n_input, n_hidden), nn.LeakyReLU(0.2),
    nn.Linear(n_hidden, n_hidden), nn.LeakyReLU(0.2),
    nn.Linear(n_hidden, 1), nn.Sigmoid())
net = net.to(device)

bce = nn.BCELoss()
opt = torch.optim.Adam(net.parameters(), lr=lr)

# one fixed order for the test images
test_perm = torch.randperm(n_input)

for epoch in range(epochs):
    net.train()
    for step, (images, _) in enumerate(train_loader):
        images = images.reshape(batch_size, -1).to(device)
        shuffled = images[:, torch.randperm(n_input)]
        ones = torch.ones(batch_size, 1).to(device)
        zeros = torch.zeros(batch_size, 1).to(device)

        p_intact = net(images)
        p_shuffled = net(shuffled)
        loss = bce(p_intact, ones) + bce(p_shuffled, zeros)

        opt.zero_grad()
        loss.backward()
        opt.step()

        if step % 2 == 1:
            print('[{}/{}] {}/{}: loss {:.4f} p(intact) {:.2f} p(shuffled) {:.2f}'.format(
                epoch + 1, epochs, step + 1, len(train_loader), loss.item(),
                p_intact.mean().item(), p_shuffled.mean().item()))

    net.eval()
    n_right, n_all = 0, 0
    with torch.no_grad():
        for images, _ in test_loader:
            images = images.reshape(images.size(0), -1).to(device)
            n_right += (net(images) > 0.5).sum().item()
            n_right += (net(images[:, test_perm]) <= 0.5).sum().item()
            n_all += 2 * images.size(0)
    print('test accuracy {:.2f} %'.format(100 * n_right / n_all))

torch.save(net.state_dict(), os.path.join(out_dir, 'net.ckpt'))
