import os

import torch
import torch.nn.functional as F

from data_loader import get_loader
from model import AttributeNet


class Solver(object):

    def __init__(self, config):
        self.config = config
        self.device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
        self.train_loader = get_loader(config.batch_size, config.n_attrs, 'train', config.num_workers)
        self.test_loader = get_loader(config.batch_size, config.n_attrs, 'test', config.num_workers)
        self.build()
        if config.resume_epoch:
            self.load(config.resume_epoch)

    def build(self):
        self.net = AttributeNet(self.config.dim, self.config.n_attrs).to(self.device)
        self.optim = torch.optim.Adam(self.net.parameters(), lr=self.config.lr, betas=(0.5, 0.999))
        print('parameters:', sum(p.numel() for p in self.net.parameters()))

    def path(self, epoch, what):
        return os.path.join(self.config.save_dir, 'epoch%03d_%s.ckpt' % (epoch, what))

    def load(self, epoch):
        print('loading', self.path(epoch, 'net'))
        self.net.load_state_dict(torch.load(self.path(epoch, 'net'), map_location=lambda storage, loc: storage))
        self.optim.load_state_dict(torch.load(self.path(epoch, 'optim'), map_location=lambda storage, loc: storage))

    def save(self, epoch):
        torch.save(self.net.state_dict(), self.path(epoch, 'net'))
        torch.save(self.optim.state_dict(), self.path(epoch, 'optim'))

    def decay_lr(self, epoch):
        c = self.config
        if epoch >= c.decay_from:
            lr = c.lr * (c.num_epochs - epoch) / float(c.num_epochs - c.decay_from + 1)
            for g in self.optim.param_groups:
                g['lr'] = lr

    def loss(self, logit, target):
        # summed over the attributes, mean over the images
        return F.binary_cross_entropy_with_logits(logit, target, reduction='sum') / logit.size(0)

    def train(self):
        step = self.config.resume_epoch * len(self.train_loader)
        for epoch in range(self.config.resume_epoch, self.config.num_epochs):
            self.decay_lr(epoch)
            self.net.train()
            for images, attrs in self.train_loader:
                images, attrs = images.to(self.device), attrs.to(self.device)
                loss = self.loss(self.net(images), attrs)
                self.optim.zero_grad()
                loss.backward()
                self.optim.step()
                step += 1
                if step % self.config.log_step == 0:
                    print('epoch [%d/%d] step %d  loss: %.4f' % (epoch + 1, self.config.num_epochs, step, loss.item()))
            self.test()
            self.save(epoch + 1)

    def test(self):
        self.net.eval()
        right = torch.zeros(self.config.n_attrs)
        n = 0
        with torch.no_grad():
            for images, attrs in self.test_loader:
                guess = (self.net(images.to(self.device)) > 0).float().cpu()
                right += (guess == attrs).float().sum(0)
                n += images.size(0)
        print('test accuracy:', ' '.join('%.3f' % a for a in (right / n).tolist()), ' of', n, 'images')
