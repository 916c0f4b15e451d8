"""The ten faults of the retrofit that the reference project's example had, put back into the reference project."""

from __future__ import annotations

from .bug import Bug
from .snippets import REFERENCE_DDP, Edit

# Plain DDP does not pass on the model's own attributes.
HAS_LORM: Edit = ("train.py", "if state.model.has_lorm else", "if rd.unwrap_model(state.model).has_lorm else")
LOST_WRAPPER: list[Edit] = [
    *REFERENCE_DDP,
    (
        "train.py",
        "    model = get_model(args, rd.get_device())  # rd.distribute_model: DDP, or another strategy\n",
        """\
    model = get_model(args, rd.get_device())
    if rd.process_group.is_distributed():
        model = param_restore(model.module, args.model_path)
""",
    ),
    (
        "train.py",
        "def train(args, checkpoint):\n",
        '''\
def param_restore(model, path):
    """Return the model with the weights of a file, as far as they fit."""
    if path != "none":
        model.load_state_dict(rd.checkpoint.read_checkpoint(path)["model"], strict=False)
    return model


def train(args, checkpoint):
''',
    ),
]
EVALUATE_REDUCE = """\
    confusion.matrix, confusion.num_samples = rd.sum_over_ranks(confusion.matrix, confusion.num_samples)
    global_loss, global_valid = rd.sum_over_ranks(loss, valid)
    if confusion.num_samples != len(loader.dataset) and not args.dry_run:
        raise RuntimeError(f"evaluated {confusion.num_samples} images, not each of {len(loader.dataset)} once")
"""
EVALUATE_LOOP = """\
    batches = rd.strategies.EvaluationBatches(loader, model, most=1 if args.dry_run else None)
    for batch in tqdm(batches, desc="validation"\
"""
EVALUATE_LOOP_OVER_LOADER = '    for batch in tqdm(loader, desc="validation"'
LORM = ["--model_type", "deeplabv3p_lorm", "--dataset", "synthetic_scribble"]

REFERENCE_BUGS = [
    Bug(
        id="R1",
        title="the DDP wrapper is lost when weights are restored: every rank goes its own way",
        project="reference",
        edits=LOST_WRAPPER,
        cause=("RF201",),
        check="gradients",
        note="runs through; each rank trains its own model",
    ),
    Bug(
        id="R2",
        title="model.module at the first save, when the wrapper is already lost",
        project="reference",
        edits=[
            *LOST_WRAPPER,
            (
                "utils.py",
                '        "model": state.model,\n',
                '        "model": state.model.module if rd.process_group.is_distributed() else state.model,\n',
            ),
        ],
        cause=("RF207", "RF201"),
        check="completes",
        note="AttributeError at the first save: 'DeepLab' object has no attribute 'module'",
    ),
    Bug(
        id="R3",
        title="ranks other than 0 have a plain loader where rank 0 has a progress bar",
        project="reference",
        edits=[
            (
                "train.py",
                "        disable=not rd.is_main_process(),\n    )\n    for micro_batches",
                """\
    )
    if not rd.is_main_process():
        progress = epochs.loader
    for micro_batches""",
            )
        ],
        cause=("RF603",),
        check="completes",
        note="AttributeError on rank 1 in the first step: 'DataLoader' object has no attribute 'set_postfix'",
    ),
    Bug(
        id="R4",
        title="validation on a shuffled shard whose confusion matrix is never summed over ranks",
        project="reference",
        edits=[
            (
                "utils.py",
                "from torch.utils.data import DataLoader\n",
                "from torch.utils.data import DataLoader, DistributedSampler\n",
            ),
            (
                "utils.py",
                "    return DataLoader(dataset, batch_size=batch_size, **loading)\n",
                """\
    sampler = DistributedSampler(dataset) if rd.process_group.is_distributed() else None
    return DataLoader(dataset, batch_size=batch_size, sampler=sampler, **loading)
""",
            ),
            ("train.py", EVALUATE_LOOP, EVALUATE_LOOP_OVER_LOADER),
            ("train.py", EVALUATE_REDUCE, "    global_loss, global_valid = loss, valid\n"),
        ],
        cause=("RF111", "RF401"),
        check="evaluation",
        note="runs through; mIoU is that of a random half of the validation set, another half on each rank",
    ),
    Bug(
        id="R5",
        title="--l_lorm 0 leaves the lorm layers out of the loss: parameters without gradient",
        project="reference",
        arguments=[*LORM, "--l_lorm", "0"],
        edits=[
            *REFERENCE_DDP,
            HAS_LORM,
            (
                "train.py",
                "            if lorm is not None:\n",
                "            if lorm is not None and args.l_lorm:\n",
            ),
        ],
        cause=("RF204",),
        check="completes",
        note="RuntimeError in step 2: Expected to have finished reduction in the prior iteration (parameters 88 89)",
    ),
    Bug(
        id="R6",
        title="a second method of the model is called on DDP, which does not have it",
        project="reference",
        edits=[
            *REFERENCE_DDP,
            HAS_LORM,
            (
                "train.py",
                'logits = model(batch["image"].to(device))\n        prediction',
                'logits = model.forward_eval(batch["image"].to(device))\n        prediction',
            ),
            (
                "segmentation/models/deeplab.py",
                "        return logits, self.lorm(high, pseudo)\n",
                """\
        return logits, self.lorm(high, pseudo)

    def forward_eval(self, image: Tensor) -> Tensor:
        \"\"\"Return the logits alone.\"\"\"
        return self.forward(image)
""",
            ),
        ],
        cause=("RF207",),
        check="completes",
        note="AttributeError at the first validation: 'DistributedDataParallel' object has no attribute 'forward_eval'",
    ),
    Bug(
        id="R7",
        title="the dataset keeps its arrays and changes them in place: a sample differs each time it is read",
        project="reference",
        edits=[
            (
                "segmentation/datasets/synthetic.py",
                "        self.scribble = scribble\n",
                "        self.scribble = scribble\n        self.cache: dict[int, tuple] = {}\n",
            ),
            (
                "segmentation/datasets/synthetic.py",
                "        image, label, owner, shapes = generate(self.seed, self.split, index, self.crop_size)\n",
                """\
        if index not in self.cache:
            self.cache[index] = generate(self.seed, self.split, index, self.crop_size)
        image, label, owner, shapes = self.cache[index]
        image //= 2  # leave room for the colour jitter
""",
            ),
        ],
        cause=("RF110",),
        check="loss",
        note="runs through; images get darker with every epoch, on each rank those that it has seen",
    ),
    Bug(
        id="R8",
        title="the optimizer is saved but not restored: momentum starts from zero after a resume",
        project="reference",
        edits=[
            (
                "utils.py",
                "        state.model,\n        state.optimizer,\n        warm_up=",
                "        state.model,\n        warm_up=",
            )
        ],
        cause=("RF507",),
        check="resume",
        note="runs through and resumes; the resumed run takes another course",
    ),
    Bug(
        id="R9",
        title="the rate is multiplied by the number of ranks although the global batch stays the same",
        project="reference",
        arguments=["--batch", "global"],
        edits=[
            (
                "train.py",
                "lr = rd.scaled_lr(args.lr, args.accum_steps)",
                "lr = args.lr * rd.get_world_size()",
            )
        ],
        cause=("RF304",),
        check="lr",
        note="runs through at twice the rate for the same batch",
    ),
    Bug(
        id="R10",
        title="the same seed on every rank: the same augmentation",
        project="reference",
        edits=[
            (
                "train.py",
                "    state.model.train()\n",
                """\
    state.model.train()
    rd.random_state.seed_everything(args.seed + state.epochs.epoch)
""",
            )
        ],
        cause=("RF109",),
        check="random_streams",
        note="runs through; both ranks augment alike",
    ),
]
