"""`retrofit doctor`: find what in this machine would stop or slow down a training on several GPUs."""
