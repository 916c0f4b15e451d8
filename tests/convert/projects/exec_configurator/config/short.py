epochs = 2
