import json
import logging
import os
import shutil

import torch


class Params():
    """hyperparameters from a json file as attributes"""

    def __init__(self, json_path):
        with open(json_path) as f:
            self.__dict__.update(json.load(f))


class RunningAverage():
    def __init__(self):
        self.n, self.sum = 0, 0.0

    def update(self, value):
        self.n += 1
        self.sum += value

    def __call__(self):
        return self.sum / self.n


def set_logger(path):
    logger = logging.getLogger()
    logger.setLevel(logging.INFO)
    for handler in (logging.FileHandler(path), logging.StreamHandler()):
        handler.setFormatter(logging.Formatter('%(levelname)s %(message)s'))
        logger.addHandler(handler)


def save_json(d, path):
    with open(path, 'w') as f:
        json.dump(d, f, indent=2)


def save_checkpoint(state, is_best, folder):
    if not os.path.exists(folder):
        os.mkdir(folder)
    last = os.path.join(folder, 'last.pth.tar')
    torch.save(state, last)
    if is_best:
        shutil.copyfile(last, os.path.join(folder, 'best.pth.tar'))


def load_checkpoint(path, model, optimizer=None):
    if not os.path.exists(path):
        raise IOError('no such file: ' + path)
    state = torch.load(path)
    model.load_state_dict(state['state_dict'])
    if optimizer:
        optimizer.load_state_dict(state['optim_dict'])
    return state
