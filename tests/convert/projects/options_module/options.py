import argparse

parser = argparse.ArgumentParser()
parser.add_argument('--epoch', type=int, default=100, help='number of epochs')
parser.add_argument('--lr', type=float, default=5e-3)
parser.add_argument('--batchsize', type=int, default=6)
parser.add_argument('--size', type=int, default=16, help='side of the pictures')
parser.add_argument('--clip', type=float, default=0.5, help='gradients are cut at +-clip')
parser.add_argument('--decay_rate', type=float, default=0.5)
parser.add_argument('--decay_epoch', type=int, default=1, help='lr * decay_rate after so many epochs')
parser.add_argument('--load', type=str, default=None, help='weights to start with')
parser.add_argument('--gpu_id', type=str, default='0')
parser.add_argument('--save_path', type=str, default='./depth_cpts/')
opt = parser.parse_args()
