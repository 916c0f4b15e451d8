# fine tune a classifier for ants and beetles (drawn ones)
import copy
import os

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.optim import lr_scheduler
from torch.utils.data import Dataset, DataLoader
from torchvision import transforms

num_epochs = 2
batch_size = 12
save_path = 'ants_beetles.pth'

to_input = transforms.Compose([transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.25] * 3)])
# TODO augmentation for 'train'
data_transforms = {'train': to_input, 'val': to_input}


class Insects(Dataset):
    classes = ['ants', 'beetles']

    def __init__(self, phase, transform=None):
        rng = np.random.RandomState({'train': 31, 'val': 32}[phase])
        n = {'train': 64, 'val': 27}[phase]
        self.targets = rng.randint(0, 2, n)
        self.images = rng.randint(60, 200, (n, 16, 16, 3)).astype(np.uint8)
        for img, t in zip(self.images, self.targets):
            r = rng.randint(2, 9)
            if t == 0:      # three small dots
                for k in range(3):
                    img[r:r + 2, 3 + 4 * k:5 + 4 * k] = 20
            else:           # one big one
                img[r:r + 5, 4:11] = 40
        self.transform = transform

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, i):
        img = self.images[i]
        if self.transform:
            img = self.transform(img)
        return img, int(self.targets[i])


datasets = {x: Insects(x, data_transforms[x]) for x in ['train', 'val']}
dataloaders = {x: DataLoader(datasets[x], batch_size=batch_size, shuffle=True, num_workers=0) for x in ['train', 'val']}
sizes = {x: len(datasets[x]) for x in ['train', 'val']}
device = torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')
print(Insects.classes, sizes)


class PreNet(nn.Module):
    # the "pretrained" part stays as it is
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2),
                                      nn.Conv2d(8, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(3))
        self.fc = nn.Linear(72, 1000)

    def forward(self, x):
        return self.fc(self.features(x).flatten(1))


def fit(model, criterion, optimizer, scheduler):
    best_acc = 0.0
    best_model_wts = copy.deepcopy(model.state_dict())
    history = {'train': [], 'val': []}

    for epoch in range(num_epochs):
        for phase in ['train', 'val']:
            model.train(phase == 'train')
            running_loss, running_corrects = 0.0, 0

            for inputs, labels in dataloaders[phase]:
                inputs, labels = inputs.to(device), labels.to(device)
                with torch.set_grad_enabled(phase == 'train'):
                    outputs = model(inputs)
                    loss = criterion(outputs, labels)
                    if phase == 'train':
                        optimizer.zero_grad()
                        loss.backward()
                        optimizer.step()
                running_loss += loss.item() * len(inputs)
                running_corrects += torch.sum(outputs.argmax(1) == labels)

            if phase == 'train':
                scheduler.step()
            epoch_acc = running_corrects.double() / sizes[phase]
            history[phase].append(running_loss / sizes[phase])
            print('epoch %d %-5s loss %.4f acc %.4f' % (epoch, phase, history[phase][-1], epoch_acc))

            if phase == 'val' and epoch_acc > best_acc:
                best_acc = epoch_acc
                best_model_wts = copy.deepcopy(model.state_dict())

    print('best acc on val: %.4f' % best_acc)
    model.load_state_dict(best_model_wts)
    return model, history


if __name__ == '__main__':
    net = PreNet()
    for p in net.features.parameters():
        p.requires_grad = False
    net.fc = nn.Linear(net.fc.in_features, len(Insects.classes))   # the only layer that learns
    net = net.to(device)

    optimizer = optim.SGD(net.fc.parameters(), lr=0.1, momentum=0.9)
    scheduler = lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.1)
    net, history = fit(net, nn.CrossEntropyLoss(), optimizer, scheduler)
    torch.save(net.state_dict(), save_path)
    print('saved', save_path, os.path.exists(save_path))
