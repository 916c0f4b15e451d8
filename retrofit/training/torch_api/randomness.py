"""Random numbers: the streams that they are drawn from, what seeds these, and what draws."""

from __future__ import annotations

from . import data
from .files import OWN_CLOCKS

# The streams that all code of a process shares, each by the package that draws from it.
TORCH, PYTHON, NUMPY = "torch", "random", "numpy.random"
SEEDS = {
    "torch.manual_seed": TORCH, "torch.random.manual_seed": TORCH, "random.seed": PYTHON, "numpy.random.seed": NUMPY,
}  # fmt: skip
SEED_OF = {TORCH: "torch.manual_seed", PYTHON: "random.seed", NUMPY: "numpy.random.seed"}
RESTORES = {
    "torch.set_rng_state": TORCH, "torch.random.set_rng_state": TORCH, "random.setstate": PYTHON,
    "numpy.random.set_state": NUMPY,
}  # fmt: skip
# Functions that draw from a stream.
TORCH_DRAWS = frozenset(
    f"{TORCH}.{name}" for name in (
        "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "bernoulli", "normal", "multinomial",
    )
)  # fmt: skip
PYTHON_DRAWS = frozenset(
    f"{PYTHON}.{name}" for name in (
        "random", "randint", "randrange", "uniform", "choice", "choices", "gauss", "normalvariate", "betavariate",
        "expovariate", "triangular", "getrandbits", "shuffle", "sample",
    )
)  # fmt: skip
PICKS = frozenset(f"{PYTHON}.{name}" for name in ("choice", "choices", "sample"))  # give what they are given
NUMPY_DRAWS = frozenset(
    f"{NUMPY}.{name}" for name in (
        "rand", "randn", "randint", "uniform", "normal", "standard_normal", "choice", "random", "random_sample", "ranf",
        "sample", "permutation", "shuffle", "beta", "binomial", "poisson", "exponential", "gamma", "dirichlet",
    )
)  # fmt: skip
SHUFFLES = frozenset({f"{PYTHON}.shuffle", f"{NUMPY}.shuffle"})  # in place
CHOOSING = PICKS | SHUFFLES | {f"{NUMPY}.choice"}  # give some of what they are given, or bring it into an order
DRAWS = TORCH_DRAWS | PYTHON_DRAWS | NUMPY_DRAWS
# Functions of libraries that draw from numpy's stream, where they are given no state; classes whose `split` does.
LIBRARY_DRAWS = frozenset({
    "sklearn.model_selection.train_test_split", "sklearn.utils.shuffle", "sklearn.utils.resample",
})  # fmt: skip
SPLITTERS = frozenset(f"sklearn.model_selection.{name}" for name in (
    "ShuffleSplit", "GroupShuffleSplit", "StratifiedShuffleSplit", "RepeatedKFold", "RepeatedStratifiedKFold",
))  # fmt: skip
SHUFFLED_FOLDS = frozenset(  # with shuffle=True
    f"sklearn.model_selection.{name}" for name in ("KFold", "StratifiedKFold", "GroupKFold", "StratifiedGroupKFold")
)
LIBRARY_METHODS = {"pandas.": "sample", "datasets.": "shuffle", "datasets.load": "train_test_split"}  # by what made it
STATES = frozenset({"random_state", "seed", "generator", "rng"})
# Methods of tensors that fill them with draws from torch's stream.
DRAWS_IN_PLACE = frozenset(
    {"bernoulli_", "uniform_", "normal_", "random_", "exponential_", "log_normal_", "geometric_", "cauchy_"}
)
# Streams of their own.
GENERATORS = frozenset({f"{NUMPY}.default_rng", f"{NUMPY}.RandomState", f"{NUMPY}.Generator", f"{PYTHON}.Random"})
# Draws that give one of what they are given, or a list of some of it.
PICKS_ONE = frozenset({
    f"{PYTHON}.choice", f"{PYTHON}.Random.choice", f"{PYTHON}.SystemRandom.choice", "secrets.choice", f"{NUMPY}.choice",
    f"{NUMPY}.default_rng.choice", f"{NUMPY}.RandomState.choice", f"{NUMPY}.Generator.choice",
})  # fmt: skip
PICKS_SEVERAL = frozenset(f"{PYTHON}.{name}" for name in ("choices", "sample", "Random.choices", "Random.sample"))
TORCH_GENERATORS = frozenset({f"{TORCH}.Generator", f"{TORCH}.Generator.manual_seed"})
# Generators that begin where the system says, if they are given no seed; what lets a stream begin there again.
OWN_GENERATORS = frozenset({
    f"{PYTHON}.Random",
    *(f"{NUMPY}.{name}" for name in ("default_rng", "RandomState", "SeedSequence", "PCG64", "MT19937", "Philox")),
})  # fmt: skip
RESEEDS = frozenset({"torch.seed", "torch.random.seed"})
# Methods that seed a generator: by a number, or by what the system says where they are given none.
GENERATOR_SEEDS = frozenset(
    {"torch.Generator.manual_seed", "torch.Generator.seed", f"{PYTHON}.Random.seed", f"{NUMPY}.RandomState.seed"}
)
# Draws from the system, which no seed repeats.
SYSTEM_DRAWS = frozenset({
    *(f"secrets.{name}" for name in ("choice", "randbelow", "randbits")),
    *(draw.replace(PYTHON, f"{PYTHON}.SystemRandom", 1) for draw in PYTHON_DRAWS),
})  # fmt: skip
# Seeds that are others in every process, and, in a worker of a loader, in every worker.
SEEDS_OF_PROCESS = OWN_CLOCKS | SYSTEM_DRAWS | {
    "time.time_ns", "torch.seed", "torch.initial_seed", "torch.Generator.seed", "os.getpid", "os.urandom",
    "secrets.token_bytes", "secrets.token_hex", "uuid.uuid1", "uuid.uuid4",
}  # fmt: skip
SEEDS_OF_WORKER = frozenset({"torch.initial_seed", data.WORKER_INFO, "torch.seed", "random.getrandbits"})
# Objects that mix the samples of a batch with each other, by numbers that they draw once for the batch.
MIXERS = frozenset({
    *(f"torchvision.transforms.v2.{name}" for name in ("MixUp", "CutMix")),
    *(f"timm.data.{name}" for name in ("Mixup", "FastCollateMixup", "mixup.Mixup", "mixup.FastCollateMixup")),
    *(f"kornia.augmentation.Random{name}" for name in ("MixUp", "MixUpV2", "CutMix", "CutMixV2", "Mosaic")),
})  # fmt: skip
# Packages of transforms, and the beginnings of the names of those that draw from torch's stream.
TRANSFORMS = ("torchvision.transforms.", "torchvision.transforms.v2.")
RANDOM_TRANSFORMS = ("Random", "ColorJitter", "AutoAugment", "RandAugment", "TrivialAugment", "AugMix", "ElasticTrans")
