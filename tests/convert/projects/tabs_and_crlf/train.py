# -*- coding: latin-1 -*-
# Vorhersage der Füllhöhe eines Behälters (LSTM)
# Größen: x = Füllhöhe der letzten 16 Stunden, y = Füllhöhe in der nächsten Stunde
import argparse
import os
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument('--epochen', type=int, default=50)
parser.add_argument('--batch', type=int, default=12)
parser.add_argument('--lr', type=float, default=0.01)
parser.add_argument('--ausgabe', default='ergebnis')
args = parser.parse_args()

FENSTER = 16
TITEL = 'Füllhöhe über der Zeit'	# steht auch in der Datei mit den Gewichten


class Behaelter(Dataset):
	def __init__(self, anfang, anzahl):
		# künstliche Messreihe: Tagesgang, Wochengang und Rauschen
		r = np.random.RandomState(3)
		t = np.arange(400)
		reihe = 0.5 * np.sin(2 * np.pi * t / 24) + 0.3 * np.sin(2 * np.pi * t / 168) + 0.05 * r.randn(400)
		self.reihe = reihe.astype(np.float32)
		self.anfang = anfang
		self.anzahl = anzahl

	def __len__(self):
		return self.anzahl

	def __getitem__(self, i):
		a = self.anfang + 2 * i
		x = self.reihe[a:a + FENSTER]
		y = self.reihe[a + FENSTER:a + FENSTER + 1]
		return torch.from_numpy(x).unsqueeze(1), torch.from_numpy(y)


class Netz(nn.Module):
	def __init__(self, breite=12):
		super(Netz, self).__init__()
		self.lstm = nn.LSTM(1, breite, batch_first=True)
		self.aus = nn.Linear(breite, 1)

	def forward(self, x):
		h, _ = self.lstm(x)
		return self.aus(h[:, -1])	# nur der letzte Zeitschritt zählt


def pruefen(netz, lader, geraet):
	netz.eval()
	summe = 0.0
	with torch.no_grad():
		for x, y in lader:
			x, y = x.to(geraet), y.to(geraet)
			summe += ((netz(x) - y) ** 2).sum().item()
	return (summe / len(lader.dataset)) ** 0.5


def main():
	geraet = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
	if not os.path.isdir(args.ausgabe):
		os.makedirs(args.ausgabe)

	training = DataLoader(Behaelter(0, 72), batch_size=args.batch, shuffle=True)
	test = DataLoader(Behaelter(200, 25), batch_size=args.batch)

	netz = Netz().to(geraet)
	verlust = nn.MSELoss()
	opt = torch.optim.Adam(netz.parameters(), lr=args.lr)
	# halbe Schrittweite nach jeder zweiten Epoche
	plan = torch.optim.lr_scheduler.StepLR(opt, 2, 0.5)
	bester = float('inf')

	for epoche in range(args.epochen):
		netz.train()
		summe = 0.0
		for x, y in training:
			x, y = x.to(geraet), y.to(geraet)
			opt.zero_grad()
			l = verlust(netz(x), y)
			l.backward()
			# große Gradienten abschneiden (sonst läuft es davon)
			nn.utils.clip_grad_norm_(netz.parameters(), 1.0)
			opt.step()
			summe += l.item()
		plan.step()
		rmse = pruefen(netz, test, geraet)
		print('Epoche %d: Verlust %.5f, RMSE %.5f' % (epoche + 1, summe / len(training), rmse))

		if rmse < bester:
			bester = rmse
			torch.save({'titel': TITEL, 'epoche': epoche + 1, 'gewichte': netz.state_dict()},
				os.path.join(args.ausgabe, 'bestes_netz.pt'))

	print('bester RMSE: %.5f' % bester)


if __name__ == '__main__':
	main()
