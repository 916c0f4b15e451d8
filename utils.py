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


def get_dataloader(args, plan, split):
    """Return this rank's loader of the training ("train") or validation ("val") set."""
    num_classes = args.numclasses or default_num_classes(args.dataset)
    dataset = build_dataset(args.dataset, args.dataset_path, split, num_classes, args.crop_size, args.seed)
    loading = dict(pin_memory=torch.cuda.is_available() and not args.no_pin_memory, **rd.loader_workers(args.workers))
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


def find_checkpoint(args):
    """Return the content of the checkpoint that --resume means, with its "path"; None to start from the beginning."""
    to_train = args.task == "train"
    resume = args.resume or ("" if to_train else "auto")
    runs = run_folders(args.logdir)
    if to_train:
        resume = rd.resume_own_run(resume, runs)
    path = rd.find_checkpoint(resume, runs, to_train=to_train) if resume else None
    if path is None:
        return None
    is_newest = str(path) != resume or rd.is_newest_checkpoint(path)  # a run under way may have saved the next by now
    return {**rd.read_checkpoint(path, whole=False), "path": path, "is_newest": is_newest}


def get_run_folder(args, checkpoint):
    """Return the run's folder, the same on every rank: that of `checkpoint` where its run is continued, else a new one.

    Collective: every rank. Raises RuntimeError when another process trains there or has continued that run since
    `checkpoint` was read.
    """
    if args.dry_run:
        return Path(args.logdir)
    continues = checkpoint and checkpoint["is_newest"]
    # A job that was restarted before its first checkpoint has a folder all the same.
    folder = checkpoint["path"].parent if continues else rd.own_run(run_folders(args.logdir))
    if folder is None:
        name = f"{args.model_type}_r{args.layers}_{args.dataset}"
        folder = rd.broadcast_object(new_run_folder(args.logdir, name) if rd.is_main_process() else None)
    rd.claim_run(folder)
    if continues and not rd.is_newest_checkpoint(checkpoint["path"]):
        raise RuntimeError(f"another training has continued {folder} in the meantime; start this one again")
    return folder
