import argparse
import os
import random

import numpy as np
import torch
from solver import Solver


def main(config):
    if not os.path.exists(config.save_dir):
        os.makedirs(config.save_dir)

    # reproducible
    random.seed(config.seed)
    np.random.seed(config.seed)
    torch.manual_seed(config.seed)

    if config.mode == 'train':
        Solver(config).train()
    else:
        Solver(config).test()


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    # model
    parser.add_argument('--dim', type=int, default=6, help='channels of the first layer')
    parser.add_argument('--n_attrs', type=int, default=5)
    # training
    parser.add_argument('--batch_size', type=int, default=6)
    parser.add_argument('--num_epochs', type=int, default=20)
    parser.add_argument('--decay_from', type=int, default=1, help='lr goes linearly to 0 from this epoch on')
    parser.add_argument('--lr', type=float, default=0.005)
    parser.add_argument('--resume_epoch', type=int, default=0)
    parser.add_argument('--num_workers', type=int, default=0)
    parser.add_argument('--seed', type=int, default=1234)
    # misc
    parser.add_argument('--mode', type=str, default='train', choices=['train', 'test'])
    parser.add_argument('--save_dir', type=str, default='models')
    parser.add_argument('--log_step', type=int, default=3)

    config = parser.parse_args()
    for k, v in sorted(vars(config).items()):
        print('%12s: %s' % (k, v))
    main(config)
