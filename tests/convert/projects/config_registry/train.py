import argparse
import json
import os
from datetime import datetime

import numpy as np
import torch

import data_loaders as module_data
import model as module_arch
from trainer import Trainer

SEED = 123
torch.manual_seed(SEED)
torch.backends.cudnn.deterministic = True
torch.backends.cudnn.benchmark = False
np.random.seed(SEED)


def init_obj(config, key, module, *args):
    """config[key] = {type, args}  ->  module.type(*args, **args)"""
    return getattr(module, config[key]['type'])(*args, **config[key]['args'])


def main(config, resume):
    # a new folder for every run
    run_id = datetime.now().strftime('%m%d_%H%M%S')
    run_dir = os.path.join(config['trainer']['save_dir'], config['name'], run_id)
    os.makedirs(run_dir, exist_ok=True)
    with open(os.path.join(run_dir, 'config.json'), 'w') as f:
        json.dump(config, f, indent=4)

    data_loader = getattr(module_data, config['data_loader']['type'])(**config['data_loader']['args'])
    valid_data_loader = data_loader.split_validation()

    model = getattr(module_arch, config['arch']['type'])(**config['arch']['args'])
    print(model)

    criterion = getattr(module_arch, config['loss'])
    metrics = [getattr(module_arch, m) for m in config['metrics']]

    trainable = filter(lambda p: p.requires_grad, model.parameters())
    optimizer = init_obj(config, 'optimizer', torch.optim, trainable)
    lr_scheduler = init_obj(config, 'lr_scheduler', torch.optim.lr_scheduler, optimizer)

    trainer = Trainer(model, criterion, metrics, optimizer, config=config, run_dir=run_dir, resume=resume,
                      data_loader=data_loader, valid_data_loader=valid_data_loader, lr_scheduler=lr_scheduler)
    trainer.train()


if __name__ == '__main__':
    args = argparse.ArgumentParser(description='Signals')
    args.add_argument('-c', '--config', default='config.json', type=str, help='config file path')
    args.add_argument('-r', '--resume', default=None, type=str, help='path to a checkpoint')
    args.add_argument('--epochs', default=None, type=int, help='instead of the epochs of the config')
    args = args.parse_args()

    with open(args.config) as f:
        config = json.load(f)
    if args.epochs:
        config['trainer']['epochs'] = args.epochs
    main(config, args.resume)
