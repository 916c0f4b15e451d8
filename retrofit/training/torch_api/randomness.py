"""Random numbers: the streams that they are drawn from, what seeds these, and what draws."""

from __future__ import annotations

from . import data

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
DRAWS = TORCH_DRAWS | PYTHON_DRAWS | NUMPY_DRAWS
# Methods of tensors that fill them with draws from torch's stream.
DRAWS_IN_PLACE = frozenset(
    {"bernoulli_", "uniform_", "normal_", "random_", "exponential_", "log_normal_", "geometric_", "cauchy_"}
)
# Streams of their own.
GENERATORS = frozenset({f"{NUMPY}.default_rng", f"{NUMPY}.RandomState", f"{NUMPY}.Generator", f"{PYTHON}.Random"})
# Generators that begin where the system says, if they are given no seed; what lets a stream begin there again.
OWN_GENERATORS = frozenset({"numpy.random.default_rng", "numpy.random.RandomState", "random.Random"})
RESEEDS = frozenset({"torch.seed", "torch.random.seed"})
# Seeds that are others in every process, and, in a worker of a loader, in every worker.
SEEDS_OF_PROCESS = frozenset({"time.time", "time.time_ns", "torch.seed", "torch.initial_seed", "os.getpid"})
SEEDS_OF_WORKER = frozenset({"torch.initial_seed", data.WORKER_INFO, "torch.seed", "random.getrandbits"})
# Packages of transforms, and the beginnings of the names of those that draw from torch's stream.
TRANSFORMS = ("torchvision.transforms.", "torchvision.transforms.v2.")
RANDOM_TRANSFORMS = ("Random", "ColorJitter", "AutoAugment", "RandAugment", "TrivialAugment", "AugMix", "ElasticTrans")
