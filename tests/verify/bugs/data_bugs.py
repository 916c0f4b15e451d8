"""Bugs in who sees which samples: shards, orders, splits, random streams, batch sizes."""

from __future__ import annotations

from .bug import Bug
from .snippets import (
    CLASSIFIER_DATA,
    CLASSIFIER_SAMPLER,
    DISTRIBUTE_LOADER,
    SET_EPOCH,
    SPLIT_STREAMS,
    classifier_sampler,
)

METRIC_DATA = "from torch.utils.data import DataLoader\n"

DATA_BUGS = [
    Bug(
        id="01",
        title="set_epoch is never called: every epoch has the same order",
        project="metric_learning",
        edits=[
            ("train.py", METRIC_DATA, METRIC_DATA.replace("DataLoader", "DataLoader, DistributedSampler")),
            (
                "train.py",
                DISTRIBUTE_LOADER,
                """\
    if rd.process_group.is_distributed():
        size, sampler = rd.data.micro_batch(args.batchsize), DistributedSampler(train_loader.dataset)
        train_loader = DataLoader(train_loader.dataset, size, sampler=sampler, drop_last=True)
""",
            ),
            SPLIT_STREAMS,
            ("train.py", SET_EPOCH, ""),
        ],
        cause=("RF101",),
        check="reshuffle",
        note="runs through; the loss of epochs 2 and 3 is not that of a reshuffled run, nothing else shows",
    ),
    Bug(
        id="01b",
        title="set_epoch is never called on a sampler that counts epochs itself: a resumed run repeats the first order",
        project="classifier",
        edits=[("train.py", SET_EPOCH, "")],
        cause=("RF101", "RF507"),
        check="resume",
        note="runs through; resumed after epoch 1, epoch 2 has the order of epoch 1 again: loss 0.409, not 0.354",
    ),
    Bug(
        id="02",
        title="the training loader is not sharded: every rank trains on the whole set",
        project="language_model",
        edits=[("train.py", f"    {DISTRIBUTE_LOADER}", "")],
        cause=("RF103",),
        check="shards",
        note="runs through with twice the steps per epoch: perplexity falls faster, 4.8 in place of 5.9",
    ),
    Bug(
        id="03",
        title="DistributedSampler pads the validation set: a sample counts twice",
        project="classifier",
        edits=[
            CLASSIFIER_SAMPLER,
            (
                "train.py",
                "    return train_loader, DataLoader(val_set, args.batchsize, **workers)\n",
                """\
    val_sampler = DistributedSampler(val_set, shuffle=False) if rd.process_group.is_distributed() else None
    return train_loader, DataLoader(val_set, args.batchsize, sampler=val_sampler, **workers)
""",
            ),
            ("train.py", "rd.share_batches(loader)", "loader"),
        ],
        cause=("RF105",),
        check="evaluation",
        note="runs through; accuracies are multiples of 1/34 with 33 validation samples",
    ),
    Bug(
        id="05",
        title="shards cut by hand, one sample longer on rank 0: one batch more there",
        project="classifier",
        arguments=["--num_samples", "97"],
        edits=[
            ("train.py", CLASSIFIER_DATA, CLASSIFIER_DATA.replace("DataLoader, ", "DataLoader, Subset, ")),
            (
                "train.py",
                DISTRIBUTE_LOADER,
                """\
    if rd.process_group.is_distributed():
        shard = Subset(train_set, range(rd.get_rank(), len(train_set), rd.get_world_size()))
        train_loader = DataLoader(Augmented(shard), rd.data.micro_batch(args.batchsize), shuffle=True, **workers)
""",
            ),
            SPLIT_STREAMS,
            ("train.py", SET_EPOCH, ""),
        ],
        cause=("RF106",),
        check="completes",
        note="hangs in the first epoch's last step, without a word",
    ),
    Bug(
        id="16",
        title="every rank takes the whole global batch: the batch grows with the number of ranks, the rate does not",
        project="classifier",
        arguments=["--dist_batch", "global"],
        edits=[*classifier_sampler("args.batchsize"), SPLIT_STREAMS],
        cause=("RF107",),
        check="global_batch",
        note="runs through with half the steps per epoch and the rate of the smaller batch",
    ),
    Bug(
        id="21",
        title="all ranks draw the same augmentation and dropout",
        project="classifier",
        edits=classifier_sampler("rd.data.micro_batch(args.batchsize)"),
        cause=("RF109",),
        check="random_streams",
        note="runs through; augmentation and dropout repeat on both ranks",
    ),
    Bug(
        id="21b",
        title="seed + rank before random_split: every rank has another training and validation set",
        project="classifier",
        edits=[
            (
                "train.py",
                "rd.random_state.seed_everything(args.seed)",
                "rd.random_state.seed_everything(args.seed + rd.get_rank())",
            ),
        ],
        cause=("RF108",),
        check="split",
        note="runs through; rank 0 validates on what rank 1 trains on",
    ),
    Bug(
        id="21c",
        title="one seed on all ranks: the loop adds the same noise to all their batches, only loader workers differ",
        project="classifier",
        arguments=["--workers", "2"],
        edits=[
            *classifier_sampler(
                "rd.data.micro_batch(args.batchsize), generator=torch.Generator().manual_seed(rd.get_rank())"
            ),
            (
                "train.py",
                "F.cross_entropy(model(image.to(device))",
                "F.cross_entropy(model((image + 0.1 * torch.randn_like(image)).to(device))",
            ),
        ],
        cause=("RF109",),
        check="random_streams",
        note="runs through; the noise repeats on both ranks",
    ),
    Bug(
        id="21d",
        title="worker_init_fn seeds by the number of the worker alone: all ranks draw the same augmentation",
        project="classifier",
        arguments=["--workers", "2"],
        edits=[
            *classifier_sampler("rd.data.micro_batch(args.batchsize), worker_init_fn=torch.manual_seed"),
            SPLIT_STREAMS,
        ],
        cause=("RF109",),
        check="random_streams",
        note="runs through; shifts and noise repeat on both ranks",
    ),
    Bug(
        id="21e",
        title="the order of the images is that of a set of names: every rank has another one",
        project="classifier",
        edits=[
            (
                "data.py",
                """        self.images, self.labels = content["images"], content["labels"]
""",
                """        numbers = [int(name[3:]) for name in {f"no_{i}" for i in range(len(content["labels"]))}]
        self.images, self.labels = content["images"][numbers], content["labels"][numbers]
""",
            ),
        ],
        cause=("RF108",),
        check="split",
        note="runs through; rank 0 validates on what rank 1 trains on",
    ),
    Bug(
        id="22",
        title="DistributedSampler takes the place of the weighted sampler: classes are no longer balanced",
        project="classifier",
        arguments=["--sampler", "weighted"],
        edits=[*classifier_sampler("rd.data.micro_batch(args.batchsize)"), SPLIT_STREAMS],
        cause=("RF102",),
        check="shards",
        note="runs through; classes come as often as they are in the set",
    ),
    Bug(
        id="22b",
        title="an IterableDataset is not sharded: every rank reads the whole stream",
        project="language_model",
        arguments=["--iterable"],
        edits=[("train.py", ", part=rd.get_rank(), num_parts=rd.get_world_size()", "")],
        cause=("RF104",),
        check="shards",
        note="runs through with twice the steps per epoch; every sentence is seen once by each rank",
    ),
    Bug(
        id="23",
        title="every rank prepares the data at the same time",
        project="classifier",
        edits=[
            (
                "train.py",
                "    with rd.output.main_process_first():\n        path = prepare_data(args.data, args.num_samples)\n",
                "    path = prepare_data(args.data, args.num_samples)\n",
            )
        ],
        cause=("RF504",),
        check="single_writer",
        note="runs through; now and then a rank reads the half-written file of the other and crashes",
    ),
    Bug(
        id="23b",
        title="every rank makes the output folder, which may not exist yet",
        project="gan",
        edits=[
            (
                "train.py",
                "    if rd.is_main_process():\n        os.makedirs(args.out, exist_ok=True)\n",
                "    if not args.resume:\n        os.mkdir(args.out)\n",
            )
        ],
        cause=("RF504",),
        check="completes",
        note="the slower rank: FileExistsError: [Errno 17] File exists: 'out'",
    ),
    Bug(
        id="23c",
        title="the rank is asked before the process group exists: every rank is rank 0 and prepares the data",
        project="classifier",
        edits=[
            (
                "train.py",
                "    with rd.output.main_process_first():\n        path = prepare_data(args.data, args.num_samples)\n",
                "    path = prepare_data(args.data, args.num_samples)\n",
            ),
            (
                "train.py",
                "    rd.setup_distributed(args)\n",
                """\
    if rd.is_main_process():
        prepare_data(args.data, args.num_samples)
    rd.setup_distributed(args)
""",
            ),
        ],
        cause=("RF504", "RF508"),  # RF508: one rank was faster, and the other one found its file
        check="single_writer",
        note="runs through; both ranks write the file, or one of them reads it while the other one writes it",
    ),
]
