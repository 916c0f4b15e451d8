"""Loaders and model of the segmentation project, on one GPU."""

import torch
from torch.utils.data import DataLoader

from segmentation.datasets import build_dataset, default_num_classes
from segmentation.models import build_model


def get_dataloader(args, split):
    """Return the loader of the training ("train") or validation ("val") set."""
    num_classes = args.numclasses or default_num_classes(args.dataset)
    dataset = build_dataset(args.dataset, args.dataset_path, split, num_classes, args.crop_size, args.seed)
    loading = dict(num_workers=args.workers, pin_memory=torch.cuda.is_available() and not args.no_pin_memory)
    if split == "train":
        return DataLoader(dataset, batch_size=args.batchsize, shuffle=True, drop_last=True, **loading)
    return DataLoader(dataset, batch_size=args.batchsize if dataset.image_size else 1, **loading)


def get_model(args, device):
    """Return the model on `device`."""
    num_classes = args.numclasses or default_num_classes(args.dataset)
    model = build_model(args.model_type, args.layers, num_classes, args.model_path).to(device)
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
    if args.compile:
        model = torch.compile(model)
    return model
