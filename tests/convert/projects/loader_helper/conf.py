# per channel, of the training images
MEAN = (0.71, 0.68, 0.70)
STD = (0.54, 0.51, 0.53)

CHECKPOINTS = 'checkpoints'
EPOCHS = 20
MILESTONES = [6, 12, 16]
SAVE_EVERY = 2   # epochs
