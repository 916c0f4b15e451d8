import torch


class EarlyStopping(object):
    """Keeps the weights with the smallest validation loss in a file and says when to give up."""

    def __init__(self, patience, path='checkpoint.pt', min_delta=0.0):
        self.patience = patience
        self.path = path
        self.min_delta = min_delta
        self.best = float('inf')
        self.bad_epochs = 0
        self.stop = False

    def step(self, val_loss, model):
        if val_loss < self.best - self.min_delta:
            print('  val loss %.6f -> %.6f, saving to %s' % (self.best, val_loss, self.path))
            self.best = val_loss
            self.bad_epochs = 0
            torch.save(model.state_dict(), self.path)
        else:
            self.bad_epochs += 1
            print('  no improvement (%d / %d)' % (self.bad_epochs, self.patience))
            self.stop = self.bad_epochs >= self.patience
        return self.stop
