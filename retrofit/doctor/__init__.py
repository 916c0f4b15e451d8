"""What in this machine will bite a training on several GPUs, found before it does (`retrofit doctor`)."""
