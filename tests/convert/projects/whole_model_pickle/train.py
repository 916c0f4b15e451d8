import torch
import torch.nn as nn
import torch.utils.data as data
import os
import argparse

from lenet import CharLeNet
from chars import Chars

ap = argparse.ArgumentParser()
ap.add_argument('--epoch', type=int, default=20)
ap.add_argument('--bs', type=int, default=12)
ap.add_argument('--lr', type=float, default=0.01)
ap.add_argument('--resume', type=str, default='', help='saved model (.pkl)')
ap.add_argument('--model_dir', type=str, default='model')
opt = ap.parse_args()

use_gpu = torch.cuda.is_available()
if not os.path.exists(opt.model_dir):
    os.mkdir(opt.model_dir)

train_data = Chars(train=True)
test_data = Chars(train=False)
train_loader = data.DataLoader(train_data, batch_size=opt.bs, shuffle=True)
test_loader = data.DataLoader(test_data, batch_size=opt.bs, shuffle=False)

if opt.resume != '':
    print('load', opt.resume)
    model = torch.load(opt.resume, weights_only=False)
else:
    model = CharLeNet()
if use_gpu:
    model = model.cuda()

criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=opt.lr)

for epoch in range(opt.epoch):
    print('epoch {}'.format(epoch + 1))
    # training-----------------------------
    model.train()
    train_loss = 0.
    train_acc = 0.
    for batch_x, batch_y in train_loader:
        if use_gpu:
            batch_x, batch_y = batch_x.cuda(), batch_y.cuda()
        out = model(batch_x)
        loss = criterion(out, batch_y)
        train_loss += loss.item() * len(batch_y)
        pred = torch.max(out, 1)[1]
        train_correct = (pred == batch_y).sum()
        train_acc += train_correct.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print('Train Loss: {:.6f}, Acc: {:.6f}'.format(train_loss / (len(train_data)), train_acc / (len(train_data))))

    # evaluation--------------------------------
    model.eval()
    eval_loss = 0.
    eval_acc = 0.
    for batch_x, batch_y in test_loader:
        if use_gpu:
            batch_x, batch_y = batch_x.cuda(), batch_y.cuda()
        with torch.no_grad():
            out = model(batch_x)
            loss = criterion(out, batch_y)
        eval_loss += loss.item() * len(batch_y)
        pred = torch.max(out, 1)[1]
        num_correct = (pred == batch_y).sum()
        eval_acc += num_correct.item()
    print('Test Loss: {:.6f}, Acc: {:.6f}'.format(eval_loss / (len(test_data)), eval_acc / (len(test_data))))

    torch.save(model, os.path.join(opt.model_dir, 'char_lenet.pkl'))
