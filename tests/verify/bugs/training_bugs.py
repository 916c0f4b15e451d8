"""Bugs in the step: gradients, losses, BatchNorm, learning rate."""

from __future__ import annotations

from .bug import Bug
from .snippets import CLASSIFIER_DDP, LANGUAGE_MODEL_DDP

CLASSIFIER_FORWARD = """\
            with torch.autocast(device.type, torch.bfloat16, enabled=args.amp == "bf16"):
                loss = F.cross_entropy(model(image.to(device)), label.to(device)) / args.accum_steps
"""
CLASSIFIER_MICRO_BATCH = f"""\
        with rd.strategies.gradient_sync(model, enabled=is_last):
{CLASSIFIER_FORWARD}            loss.backward()
"""
UNINDENTED_FORWARD = CLASSIFIER_FORWARD.replace("\n    ", "\n")[4:]
LM_LOSS = """\
        loss_sum = F.cross_entropy(logits.flatten(0, 1), target.to(device).flatten(), ignore_index=PAD, reduction="sum")
        loss = loss_sum / rd.loss.rank_share(count)
"""
LM_LOSS_PER_RANK = """\
        loss = F.cross_entropy(logits.flatten(0, 1), target.to(device).flatten(), ignore_index=PAD)
"""
NO_SYNC_BACKWARD = """\
        with rd.strategies.gradient_sync(model, enabled=is_last):
            loss.backward()
"""
ACCUMULATE = ["--accum_steps", "2"]

TRAINING_BUGS = [
    Bug(
        id="10",
        title="the loss is computed by model.module: DDP never synchronises",
        project="classifier",
        edits=[
            *CLASSIFIER_DDP,
            (
                "train.py",
                "    model.train()\n",
                '    model.train()\n    net = model.module if hasattr(model, "module") else model\n',
            ),
            ("train.py", "F.cross_entropy(model(image.to(device))", "F.cross_entropy(net(image.to(device))"),
        ],
        cause=("RF201",),
        check="gradients",
        note="runs through; each rank trains its own model, accuracy jumps about (0.12, 0.76, 0.58)",
    ),
    Bug(
        id="10b",
        title="a factor that is trained outside of the wrapped model: its gradient is never averaged",
        project="classifier",
        edits=[
            (
                "train.py",
                "    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9, weight_decay=5e-4)\n",
                """\
    scale = torch.nn.Parameter(torch.ones((), device=device))
    optimizer = torch.optim.SGD([*model.parameters(), scale], lr, momentum=0.9, weight_decay=5e-4)
    optimizer.scale = scale
""",
            ),
            (
                "train.py",
                "F.cross_entropy(model(image.to(device))",
                "F.cross_entropy(optimizer.scale * model(image.to(device))",
            ),
        ],
        cause=("RF211",),
        check="ranks_agree",
        note="runs through; each rank has a factor of its own",
    ),
    Bug(
        id="11",
        title="no_sync is off by one: the last micro batch of a step is not synchronised",
        project="classifier",
        arguments=ACCUMULATE,
        edits=[
            (
                "train.py",
                "rd.strategies.gradient_sync(model, enabled=is_last)",
                "rd.strategies.gradient_sync(model, enabled=(number + 1) % args.accum_steps == 0)",
            )
        ],
        cause=("RF202",),
        check="ranks_agree",
        note="runs through; each rank trains its own model, loss 1.7 in place of 0.9 after three epochs",
    ),
    Bug(
        id="12",
        title="no_sync around backward alone does nothing: gradients are synchronised in every micro batch",
        project="classifier",
        arguments=ACCUMULATE,
        edits=[
            (
                "train.py",
                CLASSIFIER_MICRO_BATCH,
                UNINDENTED_FORWARD + NO_SYNC_BACKWARD,
            )
        ],
        cause=("RF203",),
        check="communication",
        note="runs through with the right result; one all-reduce too many per step",
    ),
    Bug(
        id="12b",
        title="gradients are accumulated without no_sync: they are synchronised in every micro batch",
        project="classifier",
        arguments=ACCUMULATE,
        edits=[("train.py", CLASSIFIER_MICRO_BATCH, f"{UNINDENTED_FORWARD}        loss.backward()\n")],
        cause=("RF203",),
        check="communication",
        note="runs through with the right result; one all-reduce too many per step",
    ),
    Bug(
        id="13",
        title="a layer that is left over from an experiment has parameters without gradient",
        project="language_model",
        edits=[
            *LANGUAGE_MODEL_DDP,
            (
                "model.py",
                "        self.dropout = nn.Dropout(0.1)\n",
                "        self.projection = nn.Linear(width, width)\n        self.dropout = nn.Dropout(0.1)\n",
            ),
        ],
        cause=("RF204",),
        check="completes",
        note="RuntimeError in step 2: Expected to have finished reduction in the prior iteration (parameters 5 6)",
    ),
    Bug(
        id="14",
        title="two forward passes before backward: DDP writes BatchNorm's buffers in between",
        project="gan",
        edits=[
            (
                "train.py",
                "    discriminator = rd.distribute_model(Discriminator().to(device))\n",
                "    discriminator = rd.distribute_model(Discriminator().to(device), sync_batchnorm=False)\n",
            )
        ],
        cause=("RF205", "RF206"),
        check="batchnorm",
        note="without the fix of pytorch#175024 RuntimeError, modified by an inplace operation; with it runs through",
    ),
    Bug(
        id="14b",
        title="two forward passes before backward: buffers are synchronised by hand in between",
        project="gan",
        edits=[
            (
                "model.py",
                "        super().__init__()\n        self.layers = nn.Sequential(\n            nn.Conv2d(",
                """\
        super().__init__()
        self.register_buffer("sharpness", torch.ones(1))
        self.layers = nn.Sequential(
            nn.Conv2d(""",
            ),
            (
                "model.py",
                "        return self.layers(images).squeeze(1)\n",
                "        return self.layers(images).squeeze(1) * self.sharpness\n",
            ),
            ("model.py", "from torch import nn\n", "import torch\nfrom torch import nn\n"),
            (
                "train.py",
                "    real_score, fake_score = discriminator(real), discriminator(fake.detach())\n",
                """\
    real_score = discriminator(real)
    rd.model.broadcast_buffers(discriminator)
    fake_score = discriminator(fake.detach())
""",
            ),
        ],
        cause=("RF205",),
        check="completes",
        note="RuntimeError in the first backward: modified by an inplace operation, [torch.FloatTensor [1]]",
    ),
    Bug(
        id="15",
        title="BatchNorm computes its statistics of each rank's share alone",
        project="classifier",
        edits=[
            (
                "train.py",
                "rd.distribute_model(SmallNet(NUM_CLASSES).to(device))",
                "rd.distribute_model(SmallNet(NUM_CLASSES).to(device), sync_batchnorm=False)",
            )
        ],
        cause=("RF206",),
        check="batchnorm",
        note="runs through; losses differ from those of one process with the same batches",
    ),
    Bug(
        id="17",
        title="the loss is multiplied by the number of ranks, 'because DDP averages'",
        project="classifier",
        edits=[("train.py", "            loss.backward()\n", "            (loss * rd.get_world_size()).backward()\n")],
        cause=("RF301",),
        check="gradients",
        note="runs through; the loss starts out higher, as with twice the rate",
    ),
    Bug(
        id="17b",
        title="the rate is scaled twice: by the global batch and by the number of ranks",
        project="metric_learning",
        edits=[("train.py", "rd.scaled_lr(args.lr)", "rd.scaled_lr(args.lr) * rd.get_world_size()")],
        cause=("RF304",),
        check="lr",
        note="runs through at four times the rate for twice the batch",
    ),
    Bug(
        id="17c",
        title="the rate is scaled twice by the runtime: right with the global batch kept, too high where it grows",
        project="classifier",
        edits=[("train.py", "rd.scaled_lr(args.lr)", "rd.scaled_lr(rd.scaled_lr(args.lr))")],
        cause=("RF304",),
        check="default_mode",
        note="runs through; the loss starts out higher with more ranks",
    ),
    Bug(
        id="18",
        title="the schedule counts the batches of one process: it is too long by the number of ranks",
        project="classifier",
        edits=[
            (
                "train.py",
                "    steps_per_epoch = math.ceil(len(train_loader) / args.accum_steps)\n",
                """\
    batches = len(train_loader.dataset) // rd.data.micro_batch(args.batchsize)
    steps_per_epoch = math.ceil(batches / args.accum_steps)
""",
            )
        ],
        cause=("RF305",),
        check="lr",
        note="runs through; the rate warms up slower and ends high",
    ),
    Bug(
        id="18b",
        title="the schedule steps once per rank: it ends too early by the number of ranks",
        project="language_model",
        edits=[
            (
                "train.py",
                "        scheduler.step()\n",
                "        for _ in range(rd.get_world_size()):\n            scheduler.step()\n",
            )
        ],
        cause=("RF305",),
        check="lr",
        note="runs through; the rate is 0 from the middle on, perplexity stays at 9.309",
    ),
    Bug(
        id="19",
        title="the loss is the mean over each rank's own tokens, and ranks differ in tokens",
        project="language_model",
        edits=[
            ("train.py", "        count = rd.loss.batch_count((target != PAD).sum().item())\n", ""),
            ("train.py", LM_LOSS, LM_LOSS_PER_RANK),
        ],
        cause=("RF302",),
        check="gradients",
        note="runs through; losses differ from the right ones in the third digit",
    ),
    Bug(
        id="20",
        title="the contrastive loss sees the negatives of its own rank alone",
        project="metric_learning",
        edits=[
            ("train.py", "info_nce(gather_rows(first), gather_rows(second))", "info_nce(first, second)"),
            ("train.py", "from gather import gather_rows\n", ""),
        ],
        cause=("RF303",),
        check="loss",
        note="runs through; a loss over half as many negatives (1.05 for 1.59)",
    ),
    Bug(
        id="20b",
        title="embeddings are gathered without gradient: those of the other ranks' rows are lost",
        project="metric_learning",
        edits=[
            (
                "gather.py",
                "    return GatherRows.apply(rows) if rd.process_group.is_distributed() else rows\n",
                """\
    if not rd.process_group.is_distributed():
        return rows
    parts = [torch.empty_like(rows) for _ in range(rd.get_world_size())]
    dist.all_gather(parts, rows.detach().contiguous())
    parts[rd.get_rank()] = rows
    return torch.cat(parts)
""",
            )
        ],
        cause=("RF303",),
        check="gradients",
        note="runs through; gradients are half of the right ones, which Adam hides",
    ),
]
