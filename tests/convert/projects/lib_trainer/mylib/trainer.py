"""
A training loop for any model whose forward returns (output, loss)
"""
import torch
from torch.utils.data import DataLoader, RandomSampler

from mylib.utils import Config


class Trainer:

    defaults = dict(device='auto', num_workers=4, max_iters=None, batch_size=64, lr=3e-4, weight_decay=0.1, clip=1.0)

    def __init__(self, config, model, train_dataset):
        self.config = Config(**dict(self.defaults, **config.__dict__))
        self.train_dataset = train_dataset
        self.device = self.config.device
        if self.device == 'auto':
            self.device = 'cuda' if torch.cuda.is_available() else 'cpu'
        self.model = model.to(self.device)
        self.optimizer = None
        self.callbacks = {}
        self.iter_num = 0
        self.loss = None

    def add_callback(self, event, fn):
        self.callbacks.setdefault(event, []).append(fn)

    def _fire(self, event):
        for fn in self.callbacks.get(event, []):
            fn(self)

    def run(self):
        config, model = self.config, self.model
        self.optimizer = model.make_optimizer(config)

        # with replacement: no epochs, the loader (nearly) never ends
        sampler = RandomSampler(self.train_dataset, replacement=True, num_samples=int(1e10))
        loader = DataLoader(self.train_dataset, batch_size=config.batch_size, sampler=sampler,
                            num_workers=config.num_workers, pin_memory=self.device == 'cuda')

        model.train()
        for x, y in loader:
            x, y = x.to(self.device), y.to(self.device)
            logits, self.loss = model(x, y)
            self.optimizer.zero_grad(set_to_none=True)
            self.loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
            self.optimizer.step()

            self.iter_num += 1
            self._fire('on_batch_end')
            if config.max_iters is not None and self.iter_num >= config.max_iters:
                break
        self._fire('on_train_end')
