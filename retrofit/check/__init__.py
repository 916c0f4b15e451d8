"""Lists what stands between a training project and several GPUs."""
