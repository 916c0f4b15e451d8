"""List what has to change in a training project for several GPUs."""
