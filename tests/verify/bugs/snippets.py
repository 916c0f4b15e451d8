"""Edits that several bugs share: the hand-written parts of distributed training that the kit stands in for."""

from __future__ import annotations

Edit = tuple[str, str, str]

CLASSIFIER_DATA = "from torch.utils.data import DataLoader, WeightedRandomSampler, random_split\n"
CLASSIFIER_SAMPLER: Edit = (
    "train.py",
    CLASSIFIER_DATA,
    CLASSIFIER_DATA.replace("DataLoader, ", "DataLoader, DistributedSampler, "),
)
CLASSIFIER_SHARD = "    train_loader = rd.shard_loader(train_loader, seed=args.seed)\n"
CLASSIFIER_SET_EPOCH = """\
        if rd.is_distributed():
            train_loader.sampler.set_epoch(epoch)
"""


def import_ddp(after: str) -> Edit:
    """Return the edit that imports DistributedDataParallel behind the line `after` of train.py."""
    return ("train.py", after, after + "from torch.nn.parallel import DistributedDataParallel\n")


# Plain DDP in place of rd.wrap_model.
CLASSIFIER_DDP: list[Edit] = [
    import_ddp("from model import SmallNet, lr_factor\n"),
    (
        "train.py",
        "    model = rd.wrap_model(model)\n",
        "    if rd.is_distributed():\n        model = DistributedDataParallel(model)\n",
    ),
]
METRIC_DDP: list[Edit] = [
    import_ddp("from model import Encoder, info_nce, recall_at_1\n"),
    (
        "train.py",
        "    model = rd.wrap_model(Encoder(NUM_FEATURES).to(device))\n",
        """\
    model = Encoder(NUM_FEATURES).to(device)
    if rd.is_distributed():
        model = DistributedDataParallel(model)
""",
    ),
]
LANGUAGE_MODEL_DDP: list[Edit] = [
    import_ddp("from torch.utils.data import DataLoader\n"),
    (
        "train.py",
        "    model = rd.wrap_model(GRUModel(NUM_TOKENS).to(device))\n",
        """\
    model = GRUModel(NUM_TOKENS).to(device)
    if rd.is_distributed():
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
        "    return rd.wrap_model(model)\n",
        "    return DistributedDataParallel(model) if rd.is_distributed() else model\n",
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
            "rng_states": rd.gather_objects(rd.get_rng_state()),
        }
"""
METRIC_IMPORT_OS: Edit = ("train.py", "import argparse\n", "import argparse\nimport os\n")
