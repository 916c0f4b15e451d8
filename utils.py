"""Loaders and model of the segmentation project, on any number of GPUs."""

import torch
from torch.utils.data import DataLoader

import retrofit.distributed as rd
from segmentation.datasets import build_dataset, default_num_classes
from segmentation.models import build_model


def get_dataloader(args, plan, split):
    """Return this rank's loader of the training ("train") or validation ("val") set."""
    num_classes = args.numclasses or default_num_classes(args.dataset)
    dataset = build_dataset(args.dataset, args.dataset_path, split, num_classes, args.crop_size, args.seed)
    loading = dict(pin_memory=torch.cuda.is_available(), **rd.loader_workers(args.workers))
    if split == "train":
        if len(dataset) < plan.global_batch:
            raise ValueError(
                f"the training set has {len(dataset)} images, fewer than one global batch of {plan.global_batch} "
                f"({plan.micro_batch} per GPU x {plan.world_size} process(es) x {plan.accum_steps} accumulation "
                "step(s)); use a smaller --batchsize, fewer processes or more images"
            )
        loader = DataLoader(dataset, batch_size=plan.micro_batch, shuffle=True, drop_last=True, **loading)
        return rd.shard_loader(loader, seed=args.seed)
    loader = DataLoader(dataset, batch_size=plan.micro_batch if dataset.image_size else 1, **loading)
    return rd.shard_eval_loader(loader)


def get_model(args, device):
    """Return the model on `device`, its gradients averaged over all ranks."""
    num_classes = args.numclasses or default_num_classes(args.dataset)
    model = build_model(args.model_type, args.layers, num_classes, args.model_path).to(device)
    if args.sync_bn:
        model = rd.convert_sync_batchnorm(model)
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
    if args.compile:
        model = torch.compile(model)
    return rd.wrap_model(model)
