import os
import logging

import numpy as np
import torch
import torch.nn.functional as F

from options import opt
from data import get_loader, OneByOne
from model import DepthNet

if torch.cuda.is_available():
    os.environ['CUDA_VISIBLE_DEVICES'] = opt.gpu_id
    print('gpu', opt.gpu_id)
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

if not os.path.exists(opt.save_path):
    os.makedirs(opt.save_path)
logging.basicConfig(filename=opt.save_path + 'train.log', format='%(levelname)s %(message)s', level=logging.INFO)
for name in sorted(vars(opt)):
    logging.info('%s = %s', name, getattr(opt, name))

model = DepthNet()
if opt.load:
    model.load_state_dict(torch.load(opt.load, map_location='cpu'))
    print('weights from', opt.load)
model.to(device)
optimizer = torch.optim.Adam(model.parameters(), opt.lr)

train_loader = get_loader(48, 70)
tests = OneByOne(9, 71)

step = 0
best_mae, best_epoch = None, 0


def edges(depth):
    # 1 where the depth jumps
    k = torch.tensor([[0., 1, 0], [1, -4, 1], [0, 1, 0]], device=depth.device).view(1, 1, 3, 3)
    return (F.conv2d(F.pad(depth, (1, 1, 1, 1), mode='replicate'), k).abs() > 0.05).float()


def train(epoch):
    global step
    for group in optimizer.param_groups:
        group['lr'] = opt.lr * opt.decay_rate ** (epoch // opt.decay_epoch)
    model.train()
    loss_sum = 0
    for images, depths in train_loader:
        images, depths = images.to(device), depths.to(device)
        out, edge = model(images)
        loss_depth = F.smooth_l1_loss(out, depths)
        loss_edge = F.binary_cross_entropy_with_logits(edge, edges(depths))
        loss = loss_depth + 0.1 * loss_edge
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            if p.grad is not None:
                p.grad.data.clamp_(-opt.clip, opt.clip)
        optimizer.step()
        step += 1
        loss_sum += loss.data
        if step % 4 == 0:
            print('%d/%d step %d depth %.4f edge %.4f' % (epoch + 1, opt.epoch, step, loss_depth.data, loss_edge.data))
    loss_sum /= len(train_loader)
    print('%d/%d loss %.5f' % (epoch + 1, opt.epoch, loss_sum))
    logging.info('epoch %d loss %.5f', epoch + 1, loss_sum)


def val(epoch):
    global best_mae, best_epoch
    model.eval()
    mae = 0
    with torch.no_grad():
        for _ in range(tests.size):
            image, depth = tests.load()
            out = model(image.to(device))[0].cpu().numpy().squeeze()
            mae += np.abs(out - depth).mean() / tests.size
    if best_mae is None or mae < best_mae:
        best_mae, best_epoch = mae, epoch + 1
        torch.save(model.state_dict(), opt.save_path + 'depth_best.pth')
    print('%d/%d mae %.5f (best %.5f in epoch %d)' % (epoch + 1, opt.epoch, mae, best_mae, best_epoch))
    logging.info('epoch %d mae %.5f', epoch + 1, mae)


if __name__ == '__main__':
    for epoch in range(opt.epoch):
        train(epoch)
        val(epoch)
        if (epoch + 1) % 2 == 0:
            torch.save(model.state_dict(), opt.save_path + 'depth_%d.pth' % (epoch + 1))
