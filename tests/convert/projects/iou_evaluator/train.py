import argparse
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader
from tqdm import tqdm

from evaluator import Evaluator
from field_data import FieldSegmentation
from saver import Saver
from segnet import FieldNet


class Trainer(object):
    def __init__(self, args):
        self.args = args
        self.saver = Saver(args)
        self.train_loader = DataLoader(FieldSegmentation('train'), batch_size=args.batch_size, shuffle=True)
        self.val_loader = DataLoader(FieldSegmentation('val'), batch_size=args.batch_size, shuffle=False)
        nclass = FieldSegmentation.NUM_CLASSES

        model = FieldNet(nclass)
        params = [{'params': model.get_1x_lr_params(), 'lr': args.lr},
                  {'params': model.get_10x_lr_params(), 'lr': args.lr * 10}]
        self.optimizer = torch.optim.SGD(params, momentum=0.9, weight_decay=5e-4, nesterov=args.nesterov)
        self.criterion = nn.CrossEntropyLoss(ignore_index=255)
        self.evaluator = Evaluator(nclass)

        if args.cuda:
            model = torch.nn.DataParallel(model).cuda()
        self.model = model

        self.best_miou = 0.0
        self.start_epoch = 0
        if args.resume is not None:
            checkpoint = torch.load(args.resume, map_location='cpu')
            if args.cuda:
                self.model.module.load_state_dict(checkpoint['state_dict'])
            else:
                self.model.load_state_dict(checkpoint['state_dict'])
            self.optimizer.load_state_dict(checkpoint['optimizer'])
            self.best_miou = checkpoint['best_miou']
            self.start_epoch = checkpoint['epoch']
            print('=> resumed at epoch', self.start_epoch)

    def training(self, epoch):
        self.model.train()
        train_loss = 0.0
        bar = tqdm(self.train_loader)
        for i, sample in enumerate(bar):
            image, target = sample['image'], sample['label']
            if self.args.cuda:
                image, target = image.cuda(), target.cuda()
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(image), target)
            loss.backward()
            self.optimizer.step()
            train_loss += loss.item()
            bar.set_description('loss %.3f' % (train_loss / (i + 1)))
        n_images = i * self.args.batch_size + image.shape[0]
        print('epoch %d, %d images, train loss %.4f' % (epoch, n_images, train_loss / len(self.train_loader)))

    def validation(self, epoch):
        self.model.eval()
        self.evaluator.reset()
        val_loss = 0.0
        for sample in self.val_loader:
            image, target = sample['image'], sample['label']
            if self.args.cuda:
                image, target = image.cuda(), target.cuda()
            with torch.no_grad():
                output = self.model(image)
            val_loss += self.criterion(output, target).item()
            pred = np.argmax(output.data.cpu().numpy(), axis=1)
            self.evaluator.add_batch(target.cpu().numpy(), pred)

        miou = float(self.evaluator.Mean_IoU())
        print('epoch %d, val loss %.4f, acc %.4f, mIoU %.4f' % (
            epoch, val_loss / len(self.val_loader), self.evaluator.Pixel_Accuracy(), miou))

        is_best = miou > self.best_miou
        self.best_miou = max(miou, self.best_miou)
        net = self.model.module if self.args.cuda else self.model
        self.saver.save({
            'epoch': epoch + 1,
            'state_dict': net.state_dict(),
            'optimizer': self.optimizer.state_dict(),
            'best_miou': self.best_miou,
        }, is_best)


def main():
    parser = argparse.ArgumentParser(description="crop field segmentation")
    parser.add_argument('--dataset', type=str, default='fields')
    parser.add_argument('--epochs', type=int, default=None, help='default: depends on the dataset')
    parser.add_argument('--batch-size', type=int, default=12)
    parser.add_argument('--lr', type=float, default=0.05)
    parser.add_argument('--nesterov', action='store_true', default=False)
    parser.add_argument('--no-cuda', action='store_true', default=False)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--resume', type=str, default=None)
    args = parser.parse_args()
    args.cuda = not args.no_cuda and torch.cuda.is_available()
    if args.epochs is None:
        args.epochs = {'fields': 50, 'orchards': 80}[args.dataset]
    print(args)

    torch.manual_seed(args.seed)
    trainer = Trainer(args)
    for epoch in range(trainer.start_epoch, args.epochs):
        trainer.training(epoch)
        trainer.validation(epoch)


if __name__ == "__main__":
    main()
