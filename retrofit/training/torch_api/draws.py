"""Functions that draw a batch at random: which argument says how many entries, or of which shape."""

from __future__ import annotations

from .randomness import GENERATORS, NUMPY, PYTHON, TORCH

# The position and the name of the argument that holds the number of entries, or their shape.
COUNTED = {
    f"{TORCH}.randint": (2, "size"), f"{TORCH}.normal": (2, "size"), f"{TORCH}.multinomial": (1, "num_samples"),
    f"{PYTHON}.sample": (1, "k"), f"{PYTHON}.choices": (3, "k"),
    **{f"{NUMPY}.{name}": (position, "size") for name, position in {
        "randint": 2, "integers": 2, "choice": 1, "uniform": 2, "normal": 2, "standard_normal": 0, "random": 0,
        "random_sample": 0, "beta": 2, "binomial": 2, "poisson": 1, "exponential": 1, "gamma": 2, "laplace": 2,
    }.items()},
}  # fmt: skip
# Those of whole numbers, and of entries of something.
INDICES = frozenset({
    f"{TORCH}.randint", f"{TORCH}.multinomial", f"{PYTHON}.sample", f"{PYTHON}.choices", f"{NUMPY}.randint",
    f"{NUMPY}.integers", f"{NUMPY}.choice",
})  # fmt: skip
# Their positional arguments are the shape.
SHAPED = frozenset({f"{TORCH}.rand", f"{TORCH}.randn", f"{NUMPY}.rand", f"{NUMPY}.randn"})
# The same order of everything, or of so many numbers.
ORDERS = frozenset({f"{TORCH}.randperm", f"{NUMPY}.permutation"})
SHUFFLES = frozenset({f"{PYTHON}.shuffle", f"{NUMPY}.shuffle", "sklearn.utils.shuffle"})
# Each entry by a probability of its own.
BY_PROBABILITY = frozenset({f"{TORCH}.bernoulli", f"{TORCH}.poisson"})
DISTRIBUTIONS = "torch.distributions."
SAMPLES = frozenset({"sample", "rsample"})  # methods of these
DRAWS_FOR_BATCH = frozenset({"torchvision.ops.StochasticDepth", "torchvision.ops.stochastic_depth"})  # with "batch"
GENERATED = "sklearn.datasets.make_"  # n_samples come first
ROWS = "pandas.sample"  # rows of a table, by whatever it was made: all in another order with `frac`, else `n` of them
FOLDS = "sklearn.model_selection."  # their method split() gives parts of the data, for a training and its evaluation
# They cut something into parts, which are batches where a training goes through them.
CUTS = frozenset({
    "torch.split", "torch.chunk", "torch.tensor_split", "numpy.array_split", "numpy.split",
})  # fmt: skip
_STREAMS = {**dict.fromkeys(GENERATORS, NUMPY), f"{PYTHON}.Random": PYTHON}


def of_common_stream(name: str) -> str:
    """Return the function of a package that a method of a generator is: numpy.random.choice of rng.choice."""
    owner, _, method = name.rpartition(".")
    if method == "sample" and owner.startswith("pandas."):
        return ROWS
    return f"{_STREAMS[owner]}.{method}" if owner in _STREAMS else name
