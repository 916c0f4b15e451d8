"""Loaders, model and run folder of the segmentation project, on any number of GPUs; the words of its --config files."""

from pathlib import Path

import torch
from torch.utils.data import DataLoader

import retrofit.distributed as rd
from segmentation.config_file import ConfigWords
from segmentation.datasets import build_dataset, default_num_classes
from segmentation.models import build_model
from segmentation.run_folder import new_run_folder, run_folders

# What a --config file may call sections and flags, beside the names that --help has for them. A pair is a flag and what
# true and false mean for it; None: nothing, the line is as good as not there.
CONFIG_WORDS = ConfigWords(
    sections={
        **{"ddp": "distributed", "launch": "distributed"},
        **{"dataset": "data", "dataloader": "data", "train": "training", "trainer": "training"},
        **{"optimizer": "training", "log": "output", "logging": "output", "checkpoint": "output"},
    },
    keys={
        "distributed.enabled": "distributed",
        "distributed.backend": "dist_backend",
        "distributed.init_method": "dist_url",
        "distributed.timeout": "dist_timeout",
        **{"model.name": "model_type", "model.type": "model_type", "num_classes": "numclasses"},
        "pretrained": ("model_path", {True: "imagenet", False: "none"}),
        **{"pretrained_path": "model_path", "pretrained_weights": "model_path"},
        **{"data.name": "dataset", "data.path": "dataset_path", "data.root": "dataset_path"},
        **{"batch_size": "batchsize", "num_workers": "workers", "image_size": "crop_size"},
        "pin_memory": ("no_pin_memory", {True: False, False: True}),
        **{"num_epochs": "epochs", "max_epochs": "epochs", "learning_rate": "lr", "weight_decay": "wdecay"},
        **{"scheduler": "sched", "max_grad_norm": "clip_grad", "gradient_checkpointing": "grad_ckpt"},
        "grad_accumulation_steps": "accum_steps",
        "gradient_accumulation_steps": "accum_steps",
        "accumulation_steps": "accum_steps",
        "sync_batchnorm": "sync_bn",
        "mixed_precision": "amp",
        "fp16": ("amp", {True: "fp16", False: None}),
        "bf16": ("amp", {True: "bf16", False: None}),
        **{"log_dir": "logdir", "output_dir": "logdir", "save_interval": "chk_interval"},
        **{"resume_from": "resume", "resume_from_checkpoint": "resume"},
    },
)


def get_dataloader(args, split):
    """Return this rank's loader of the training set ("train"), or the loader of the whole validation set ("val")."""
    num_classes = args.numclasses or default_num_classes(args.dataset)
    dataset = build_dataset(args.dataset, args.dataset_path, split, num_classes, args.crop_size, args.seed)
    loading = rd.data.loader_workers(args.workers)
    loading["pin_memory"] = torch.cuda.is_available() and not args.no_pin_memory
    if split == "train":
        loader = DataLoader(dataset, batch_size=args.batchsize, shuffle=True, drop_last=True, **loading)
        return rd.distribute_loader(loader, seed=args.seed, accum_steps=args.accum_steps)
    batch_size = rd.data.micro_batch(args.batchsize, args.accum_steps) if dataset.image_size else 1
    return DataLoader(dataset, batch_size=batch_size, **loading)


def get_model(args, device):
    """Return the model on `device`, its gradients averaged over all ranks."""
    num_classes = args.numclasses or default_num_classes(args.dataset)
    model = build_model(args.model_type, args.layers, num_classes, args.model_path).to(device)
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
    if args.compile:
        model = torch.compile(model)
    unused = args.find_unused_parameters
    return rd.distribute_model(model, args.strategy, sync_batchnorm=args.sync_bn, find_unused_parameters=unused)


def find_checkpoint(args):
    """Return the content of the checkpoint that --resume means, with its "path"; None to start from the beginning."""
    runs = run_folders(args.logdir)
    if args.task == "train":
        return rd.job.read_resumed(args.resume, runs)
    path = rd.checkpoint.find_checkpoint(args.resume or "auto", runs, to_train=False)
    return {**rd.checkpoint.read_checkpoint(path, whole=False), "path": path}


def get_run_folder(args, checkpoint):
    """Return the run's folder, the same on every rank: that of `checkpoint` where its run is continued, else a new one.

    Collective: every rank. Raises what `rd.job.open_run` raises.
    """
    if args.dry_run:
        return Path(args.logdir)
    name = f"{args.model_type}_r{args.layers}_{args.dataset}"
    return rd.job.open_run(run_folders(args.logdir), new_run_folder, args.logdir, name, checkpoint=checkpoint)
