import glob
import os
import shutil
import torch


class Saver(object):
    # run/<dataset>/experiment_0, experiment_1, ...
    def __init__(self, args):
        self.root = os.path.join('run', args.dataset)
        old = sorted(int(d.split('_')[-1]) for d in glob.glob(os.path.join(self.root, 'experiment_*')))
        number = old[-1] + 1 if old else 0
        self.dir = os.path.join(self.root, 'experiment_%d' % number)
        if not os.path.exists(self.dir):
            os.makedirs(self.dir)

        with open(os.path.join(self.dir, 'parameters.txt'), 'w') as f:
            for name in ('dataset', 'lr', 'epochs', 'batch_size'):
                f.write('%s=%s\n' % (name, getattr(args, name)))

    def save(self, state, is_best):
        path = os.path.join(self.dir, 'checkpoint.pth.tar')
        torch.save(state, path)
        if is_best:
            shutil.copyfile(path, os.path.join(self.dir, 'model_best.pth.tar'))
            with open(os.path.join(self.dir, 'best_miou.txt'), 'w') as f:
                f.write('%.4f\n' % state['best_miou'])
