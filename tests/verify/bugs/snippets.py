"""Edits that several bugs share: the hand-written parts of distributed training that the kit stands in for."""

from __future__ import annotations

Edit = tuple[str, str, str]

CLASSIFIER_DATA = "from torch.utils.data import DataLoader, WeightedRandomSampler, random_split\n"
CLASSIFIER_SAMPLER: Edit = (
    "train.py",
    CLASSIFIER_DATA,
    CLASSIFIER_DATA.replace("DataLoader, ", "DataLoader, DistributedSampler, "),
)
DISTRIBUTE_LOADER = "    train_loader = rd.distribute_loader(train_loader, seed=args.seed)\n"
SET_EPOCH = "        rd.set_epoch(train_loader, epoch)\n"
# What distribute_loader does, for a loader that is sharded by hand.
SPLIT_STREAMS: Edit = (
    "train.py",
    "    lr = rd.scaled_lr(args.lr)\n",
    "    lr = rd.scaled_lr(args.lr)\n    rd.random_state.split_random_streams(args.seed)\n",
)


def import_ddp(after: str) -> Edit:
    """Return the edit that imports DistributedDataParallel after the line `after` of train.py."""
    return ("train.py", after, after + "from torch.nn.parallel import DistributedDataParallel\n")


def classifier_sampler(batch_size: str) -> list[Edit]:
    """Return the edits that put torch's DistributedSampler in the place of rd.distribute_loader."""
    return [
        CLASSIFIER_SAMPLER,
        (
            "train.py",
            DISTRIBUTE_LOADER,
            f"""\
    if rd.process_group.is_distributed():
        sampler = DistributedSampler(train_set, seed=args.seed)
        train_loader = DataLoader(Augmented(train_set), {batch_size}, sampler=sampler, drop_last=True, **workers)
""",
        ),
    ]


def classifier_ddp(options: str) -> list[Edit]:
    """Return the edits that put plain DDP in the place of rd.distribute_model."""
    return [
        import_ddp("from model import SmallNet, lr_factor\n"),
        (
            "train.py",
            "    model = rd.distribute_model(SmallNet(NUM_CLASSES).to(device))\n",
            f"""\
    model = rd.model.convert_sync_batchnorm(SmallNet(NUM_CLASSES).to(device))
    if rd.process_group.is_distributed():
        model = DistributedDataParallel(model{options})
""",
        ),
    ]


# Ranks can have different numbers of batches in an evaluation, in each of which DDP would broadcast buffers otherwise.
CLASSIFIER_DDP = classifier_ddp(", broadcast_buffers=False")
METRIC_DDP: list[Edit] = [
    import_ddp("from model import Encoder, info_nce, recall_at_1\n"),
    (
        "train.py",
        "    model = rd.distribute_model(Encoder(NUM_FEATURES).to(device))\n",
        """\
    model = Encoder(NUM_FEATURES).to(device)
    if rd.process_group.is_distributed():
        model = DistributedDataParallel(model)
""",
    ),
]
LANGUAGE_MODEL_DDP: list[Edit] = [
    import_ddp("from torch.utils.data import DataLoader\n"),
    (
        "train.py",
        "    model = rd.distribute_model(GRUModel(NUM_TOKENS).to(device))\n",
        """\
    model = GRUModel(NUM_TOKENS).to(device)
    if rd.process_group.is_distributed():
        model = DistributedDataParallel(model)
""",
    ),
]
REFERENCE_DDP: list[Edit] = [
    (
        "utils.py",
        "from torch.utils.data import DataLoader\n",
        "from torch.nn.parallel import DistributedDataParallel\nfrom torch.utils.data import DataLoader\n",
    ),
    (
        "utils.py",
        """\
    unused = args.find_unused_parameters
    return rd.distribute_model(model, args.strategy, sync_batchnorm=args.sync_bn, find_unused_parameters=unused)
""",
        """\
    if args.sync_bn:
        model = rd.model.convert_sync_batchnorm(model)
    return DistributedDataParallel(model) if rd.process_group.is_distributed() else model
""",
    ),
]

# A checkpoint written by hand, everything in it that resuming needs; `model.state_dict()` is each bug's own.
METRIC_SAVE_CALL = "        rd.save_checkpoint(model, optimizer, epoch + 1, path, scheduler=scheduler)\n"
METRIC_CONTENT = """\
        content = {
            "model": %s,
            "optimizer": optimizer.state_dict(),
            "epoch": epoch + 1,
            "scheduler": scheduler.state_dict(),
            "world_size": rd.get_world_size(),
            "rng_states": rd.collectives.gather_objects(rd.random_state.get_rng_state()),
        }
"""
METRIC_IMPORT_OS: Edit = ("train.py", "import argparse\n", "import argparse\nimport os\n")
