"""All seeded bugs: `BUGS`, and `seed_bug(bug, folder)` to make one."""

from __future__ import annotations

from .bug import Bug, copy_project, seed_bug
from .data_bugs import DATA_BUGS
from .output_bugs import OUTPUT_BUGS
from .reference_bugs import REFERENCE_BUGS
from .resume_bugs import RESUME_BUGS
from .training_bugs import TRAINING_BUGS

__all__ = ["BUGS", "SOUND", "Bug", "copy_project", "seed_bug"]

BUGS = sorted([*DATA_BUGS, *TRAINING_BUGS, *OUTPUT_BUGS, *RESUME_BUGS], key=lambda bug: bug.id) + REFERENCE_BUGS

# Projects in which nothing is wrong, with the arguments to run each with.
SOUND = {
    "classifier": [
        [],
        ["--sampler", "weighted", "--num_samples", "97"],
        ["--accum_steps", "2"],
        ["--amp", "bf16"],
    ],
    "language_model": [[], ["--iterable"]],
    "gan": [[]],
    "metric_learning": [[]],
    "reference": [[], ["--model_type", "deeplabv3p_lorm", "--dataset", "synthetic_scribble"]],
}
