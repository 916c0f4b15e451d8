import torch
import torch.nn as nn


class RNNModel(nn.Module):
    def __init__(self, n_words, n_emb, n_hid):
        super(RNNModel, self).__init__()
        self.emb = nn.Embedding(n_words, n_emb)
        self.lstm = nn.LSTM(n_emb, n_hid)
        self.out = nn.Linear(n_hid, n_words)
        self.n_hid = n_hid
        self.emb.weight.data.uniform_(-0.1, 0.1)

    def forward(self, words, hidden):
        h, hidden = self.lstm(self.emb(words), hidden)
        return self.out(h).flatten(0, 1), hidden

    def init_hidden(self, columns):
        z = torch.zeros(1, columns, self.n_hid, device=self.out.weight.device)
        return z, z.clone()
