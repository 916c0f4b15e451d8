import torch

from base import BaseTrainer


class Tracker:
    def __init__(self, *keys):
        self.total = {k: 0.0 for k in keys}
        self.count = {k: 0 for k in keys}

    def reset(self):
        for k in self.total:
            self.total[k], self.count[k] = 0.0, 0

    def update(self, key, value, n=1):
        self.total[key] += value * n
        self.count[key] += n

    def result(self):
        return {k: self.total[k] / max(self.count[k], 1) for k in self.total}


class Trainer(BaseTrainer):
    def __init__(self, model, criterion, metrics, optimizer, config, run_dir, resume, data_loader,
                 valid_data_loader=None, lr_scheduler=None):
        super().__init__(model, criterion, metrics, optimizer, config, run_dir, resume)
        self.data_loader = data_loader
        self.valid_data_loader = valid_data_loader
        self.do_validation = self.valid_data_loader is not None
        self.lr_scheduler = lr_scheduler
        self.log_step = int(data_loader.batch_size ** 0.5)
        names = ['loss'] + [m.__name__ for m in self.metrics]
        self.train_metrics = Tracker(*names)
        self.valid_metrics = Tracker(*names)

    def _train_epoch(self, epoch):
        self.model.train()
        self.train_metrics.reset()
        for batch_idx, (data, target) in enumerate(self.data_loader):
            data, target = data.to(self.device), target.to(self.device)

            self.optimizer.zero_grad()
            output = self.model(data)
            loss = self.criterion(output, target)
            loss.backward()
            self.optimizer.step()

            self.train_metrics.update('loss', loss.item(), len(data))
            for met in self.metrics:
                self.train_metrics.update(met.__name__, met(output, target), len(data))
            if batch_idx % self.log_step == 0:
                print('epoch {} {} loss {:.6f}'.format(epoch, self._progress(batch_idx), loss.item()))

        log = self.train_metrics.result()
        if self.do_validation:
            val_log = self._valid_epoch(epoch)
            log.update(**{'val_' + k: v for k, v in val_log.items()})
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()
        return log

    def _valid_epoch(self, epoch):
        self.model.eval()
        self.valid_metrics.reset()
        with torch.no_grad():
            for data, target in self.valid_data_loader:
                data, target = data.to(self.device), target.to(self.device)
                output = self.model(data)
                self.valid_metrics.update('loss', self.criterion(output, target).item(), len(data))
                for met in self.metrics:
                    self.valid_metrics.update(met.__name__, met(output, target), len(data))
        return self.valid_metrics.result()

    def _progress(self, batch_idx):
        done = batch_idx * self.data_loader.batch_size
        return '%d/%d' % (done, self.data_loader.n_samples)
