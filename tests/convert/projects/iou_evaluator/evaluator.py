import numpy as np


class Evaluator(object):
    """confusion matrix, rows = annotation, columns = prediction"""

    def __init__(self, num_class):
        self.num_class = num_class
        self.reset()

    def reset(self):
        self.conf = np.zeros((self.num_class, self.num_class), dtype=np.int64)

    def add_batch(self, gt, pred):
        known = gt < self.num_class     # 255 is ignored
        pairs = gt[known] * self.num_class + pred[known]
        self.conf += np.bincount(pairs, minlength=self.num_class ** 2).reshape(self.conf.shape)

    def Pixel_Accuracy(self):
        return np.trace(self.conf) / float(self.conf.sum())

    def Mean_IoU(self):
        tp = np.diag(self.conf).astype(float)
        union = self.conf.sum(0) + self.conf.sum(1) - tp
        return np.mean(tp[union > 0] / union[union > 0])
