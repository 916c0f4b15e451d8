#!/usr/bin/env python3
# surface defects, 3 classes, very imbalanced (most parts are ok)
import os, sys
import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import Dataset, DataLoader, WeightedRandomSampler

NUM_EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 20
BATCH_SIZE = 18
CLASS_NAMES = ['ok', 'scratch', 'dent']


class DefectDataset(Dataset):
	def __init__(self, n_per_class, seed):
		rng = np.random.RandomState(seed)
		self.samples = []
		for label, n in enumerate(n_per_class):
			for _ in range(n):
				img = rng.normal(0.5, 0.1, (14, 14))
				if label == 1:
					k = rng.randint(3, 11)
					img[k, 2:12] -= 0.5
				elif label == 2:
					r, c = rng.randint(2, 9, 2)
					img[r:r+4, c:c+4] += 0.4
				self.samples.append((img.astype(np.float32)[None], label))

	def __len__(self):
		return len(self.samples)

	def __getitem__(self, idx):
		img, label = self.samples[idx]
		return torch.from_numpy((img - 0.5) / 0.2), label

	def get_labels(self):
		return [s[1] for s in self.samples]


class DefectNet(nn.Module):
	def __init__(self):
		super(DefectNet, self).__init__()
		self.conv = nn.Sequential(
			nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2),
			nn.Conv2d(8, 12, 3), nn.ReLU(), nn.MaxPool2d(2))
		self.fc = nn.Linear(12 * 2 * 2, len(CLASS_NAMES))

	def forward(self, x):
		x = self.conv(x)
		return self.fc(x.view(x.shape[0], -1))


def make_sampler(dataset):
	labels = np.array(dataset.get_labels())
	counts = np.bincount(labels)
	print('class counts:', dict(zip(CLASS_NAMES, counts.tolist())))
	weights = 1.0 / counts[labels]
	return WeightedRandomSampler(torch.from_numpy(weights), num_samples=len(weights), replacement=True)


def validate(model, loader, device):
	model.eval()
	per_class = np.zeros((len(CLASS_NAMES), 2))
	with torch.no_grad():
		for imgs, labels in loader:
			preds = model(imgs.to(device)).argmax(1).cpu().numpy()
			for p, l in zip(preds, labels.numpy()):
				per_class[l, 0] += p == l
				per_class[l, 1] += 1
	recall = per_class[:, 0] / per_class[:, 1]
	print('   recall: ' + '  '.join('%s %.2f' % z for z in zip(CLASS_NAMES, recall)))
	return recall.mean()


def main():
	device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
	train_set = DefectDataset([70, 12, 8], 0)
	val_set = DefectDataset([30, 7, 6], 1)
	train_loader = DataLoader(train_set, batch_size=BATCH_SIZE, sampler=make_sampler(train_set), drop_last=True)
	val_loader = DataLoader(val_set, batch_size=BATCH_SIZE, shuffle=False)

	model = DefectNet().to(device)
	criterion = nn.CrossEntropyLoss()
	optimizer = optim.Adam(model.parameters(), 0.02)

	best = 0
	for epoch in range(NUM_EPOCHS):
		model.train(); epoch_loss = 0
		for imgs, labels in train_loader:
			imgs = imgs.to(device); labels = labels.to(device)
			optimizer.zero_grad()
			loss = criterion(model(imgs), labels)
			loss.backward()
			optimizer.step()
			epoch_loss += loss.item()
		epoch_loss /= len(train_loader)
		print('epoch %d/%d: loss %.4f' % (epoch + 1, NUM_EPOCHS, epoch_loss))
		bal_acc = validate(model, val_loader, device)
		print('   balanced acc: %.4f' % bal_acc)
		if bal_acc >= best:
			best = bal_acc
			torch.save(model.state_dict(), 'defectnet_best.pt')

	torch.save(model.state_dict(), 'defectnet.pt')
	print('done, best balanced acc %.4f' % best)


if __name__ == '__main__':
	main()
