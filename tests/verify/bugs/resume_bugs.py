"""Bugs that show after a resume alone: state that is saved and not restored, or restored on the wrong ranks."""

from __future__ import annotations

from .bug import Bug
from .snippets import SPLIT_STREAMS, classifier_sampler

RANDOM_STATE = """\
        if checkpoint["world_size"] == rd.get_world_size():
            rd.random_state.set_rng_state(checkpoint["rng_states"][rd.get_rank()])
"""

RESUME_BUGS = [
    Bug(
        id="26",
        title="rank 0's random state is restored on every rank: after a resume all draw the same augmentation",
        project="classifier",
        edits=[
            *classifier_sampler("rd.data.micro_batch(args.batchsize)"),
            SPLIT_STREAMS,
            ("train.py", RANDOM_STATE, '        rd.random_state.set_rng_state(checkpoint["rng_states"][0])\n'),
        ],
        cause=("RF109", "RF507"),
        check="random_streams",
        note="runs through and resumes; augmentation repeats on both ranks from then on",
    ),
    Bug(
        id="26b",
        title="the second optimizer is not restored: the discriminator's moments start from zero",
        project="gan",
        edits=[
            (
                "train.py",
                'others = {"discriminator": discriminator, "d_optimizer": d_optimizer}',
                'others = {"discriminator": discriminator}',
            )
        ],
        cause=("RF507",),
        check="resume",
        note="runs through and resumes; the first steps of the discriminator are too large",
    ),
    Bug(
        id="26c",
        title="the schedule is saved and not restored: after a resume it begins again",
        project="metric_learning",
        edits=[
            (
                "train.py",
                "rd.load_checkpoint(model, optimizer, args.resume, scheduler=scheduler)",
                "rd.load_checkpoint(model, optimizer, args.resume)",
            )
        ],
        cause=("RF507",),
        check="resume",
        note="runs through and resumes; the rate is that of the first epochs",
    ),
    Bug(
        id="26d",
        title="the axis of the curves begins at 0 after a resume",
        project="gan",
        edits=[("train.py", "num_images = first_epoch * len(loader) * global_batch", "num_images = 0")],
        cause=("RF506",),
        check="resume",
        note="runs through and resumes; the curves of both parts lie over each other",
    ),
    Bug(
        id="26e",
        title="the epoch is not restored: a resumed run begins at epoch 0, with the first order of the samples",
        project="language_model",
        edits=[("train.py", '        epochs.resume(checkpoint["position"], checkpoint["rng_states"])\n', "")],
        cause=("RF507",),
        check="resume",
        note="runs through and resumes; trains one epoch too many",
    ),
]
