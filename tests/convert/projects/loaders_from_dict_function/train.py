"""Counting lines in small pictures.

    python train.py --exp_dir experiments/base
"""
import argparse
import logging
import os

import numpy as np
import torch
from tqdm import tqdm

import net
import utils
from data_loader import fetch_dataloader
from evaluate import evaluate

parser = argparse.ArgumentParser()
parser.add_argument('--exp_dir', default='.', help='folder with params.json, results go there as well')
parser.add_argument('--restore_file', default=None, help='"best" or "last": weights in exp_dir to begin with')


def train_epoch(model, optimizer, loss_fn, dataloader, metrics, params):
    model.train()
    summaries = []
    loss_avg = utils.RunningAverage()

    progress = tqdm(dataloader)
    for i, (images, labels) in enumerate(progress):
        if params.cuda:
            images, labels = images.cuda(), labels.cuda()

        scores = model(images)
        loss = loss_fn(scores, labels)

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        loss_avg.update(loss.item())
        progress.set_postfix(loss='%.3f' % loss_avg())

        # metrics on cpu are slow, so not for every batch
        if i % params.summary_every == 0:
            scores, labels = scores.detach().cpu().numpy(), labels.cpu().numpy()
            summaries.append({name: fn(scores, labels) for name, fn in metrics.items()})

    for name in metrics:
        logging.info('train %s: %.3f', name, np.mean([s[name] for s in summaries]))
    print('loss: %.5f' % loss_avg())


def train_and_evaluate(model, loaders, optimizer, loss_fn, metrics, params, exp_dir, restore_file):
    if restore_file is not None:
        path = os.path.join(exp_dir, restore_file + '.pth.tar')
        logging.info('restoring %s', path)
        utils.load_checkpoint(path, model, optimizer)

    best_acc = 0.0
    for epoch in range(params.num_epochs):
        logging.info('epoch %d of %d', epoch + 1, params.num_epochs)
        train_epoch(model, optimizer, loss_fn, loaders['train'], metrics, params)

        val = evaluate(model, loss_fn, loaders['val'], metrics, params)
        print('val: ' + ' '.join('%s %.4f' % (k, val[k]) for k in sorted(val)))

        is_best = val['accuracy'] >= best_acc
        state = {'epoch': epoch + 1, 'state_dict': model.state_dict(), 'optim_dict': optimizer.state_dict()}
        utils.save_checkpoint(state, is_best, exp_dir)
        if is_best:
            best_acc = val['accuracy']
            utils.save_json(val, os.path.join(exp_dir, 'val_best.json'))
        utils.save_json(val, os.path.join(exp_dir, 'val_last.json'))


if __name__ == '__main__':
    args = parser.parse_args()
    json_path = os.path.join(args.exp_dir, 'params.json')
    assert os.path.isfile(json_path), 'no params.json in ' + args.exp_dir
    params = utils.Params(json_path)
    params.cuda = torch.cuda.is_available()

    torch.manual_seed(42)
    if params.cuda: torch.cuda.manual_seed(42)

    utils.set_logger(os.path.join(args.exp_dir, 'train.log'))

    dataloaders = fetch_dataloader(['train', 'val'], params)
    logging.info('%d training batches', len(dataloaders['train']))

    model = net.Net(params)
    model = model.cuda() if params.cuda else model
    optimizer = torch.optim.Adam(model.parameters(), lr=params.learning_rate)

    train_and_evaluate(model, dataloaders, optimizer, net.loss_fn, net.metrics, params, args.exp_dir, args.restore_file)
