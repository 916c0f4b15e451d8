import math
import os
from abc import abstractmethod

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data.sampler import SubsetRandomSampler


class BaseDataLoader(DataLoader):
    """DataLoader that keeps a part of its dataset back for validation"""

    def __init__(self, dataset, batch_size, shuffle, validation_split, num_workers):
        self.n_samples = len(dataset)
        self.valid_indices = None
        sampler = None
        if validation_split:
            order = np.arange(len(dataset))
            np.random.seed(0)   # must be the same split in every run
            np.random.shuffle(order)
            n_valid = int(len(dataset) * validation_split)
            self.valid_indices = order[:n_valid]
            sampler = SubsetRandomSampler(order[n_valid:])
            self.n_samples -= n_valid
            shuffle = False     # not together with a sampler
        self.kwargs = {'batch_size': batch_size, 'num_workers': num_workers}
        super().__init__(dataset, shuffle=shuffle, sampler=sampler, **self.kwargs)

    def split_validation(self):
        if self.valid_indices is None:
            return None
        return DataLoader(self.dataset, sampler=SubsetRandomSampler(self.valid_indices), **self.kwargs)


class BaseTrainer:
    def __init__(self, model, criterion, metrics, optimizer, config, run_dir, resume):
        self.device = torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')
        self.model = model.to(self.device)
        self.criterion = criterion
        self.metrics = metrics
        self.optimizer = optimizer
        self.config = config
        self.run_dir = run_dir

        cfg = config['trainer']
        self.epochs = cfg['epochs']
        self.save_period = cfg['save_period']
        self.early_stop = cfg.get('early_stop', math.inf)
        self.mode, self.monitor = cfg['monitor'].split()
        assert self.mode in ['min', 'max']
        self.best = math.inf if self.mode == 'min' else -math.inf
        self.start_epoch = 1

        if resume is not None:
            self._resume_checkpoint(resume)

    @abstractmethod
    def _train_epoch(self, epoch):
        raise NotImplementedError

    def train(self):
        bad_epochs = 0
        for epoch in range(self.start_epoch, self.epochs + 1):
            log = {'epoch': epoch}
            log.update(self._train_epoch(epoch))
            for key, value in log.items():
                print('    {:18s}: {}'.format(key, value if isinstance(value, int) else '%.5f' % value))

            value = log[self.monitor]
            improved = value < self.best if self.mode == 'min' else value > self.best
            if improved:
                self.best = value
                bad_epochs = 0
            else:
                bad_epochs += 1
            if bad_epochs > self.early_stop:
                print("no improvement for {} epochs, stop".format(self.early_stop))
                break
            if epoch % self.save_period == 0:
                self._save_checkpoint(epoch, save_best=improved)

    def _save_checkpoint(self, epoch, save_best=False):
        state = {
            'arch': type(self.model).__name__,
            'epoch': epoch,
            'state_dict': self.model.state_dict(),
            'optimizer': self.optimizer.state_dict(),
            'best': self.best,
            'config': self.config
        }
        name = 'checkpoint-epoch{}.pth'.format(epoch)
        torch.save(state, os.path.join(self.run_dir, name))
        print('saved', name)
        if save_best:
            torch.save(state, os.path.join(self.run_dir, 'model_best.pth'))
            print('saved model_best.pth')

    def _resume_checkpoint(self, path):
        checkpoint = torch.load(path)
        if checkpoint['arch'] != type(self.model).__name__:
            raise RuntimeError('this is a checkpoint of a ' + checkpoint['arch'])
        self.model.load_state_dict(checkpoint['state_dict'])
        self.optimizer.load_state_dict(checkpoint['optimizer'])
        self.best = checkpoint['best']
        self.start_epoch = checkpoint['epoch'] + 1
        print('resumed, next epoch is', self.start_epoch)
