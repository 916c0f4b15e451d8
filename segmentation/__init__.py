"""The reference project's semantic segmentation: models, losses, datasets, transforms, metrics."""
