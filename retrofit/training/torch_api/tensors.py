"""Tensors and arrays: methods and functions by their own name, as `x.mean()` and `torch.mean(x)` have it."""

from __future__ import annotations

import ast

# Packages whose functions compute something of the arrays that they are given, and keep none of them.
ARRAY_PACKAGES = ("torch", "numpy", "cv2", "scipy")

# Numbers for Python, or numpy, of a tensor's entries: no gradient flows through these.
READS = frozenset({"item", "tolist", "numpy"})
# The same entries without their history; `data` is an attribute.
DETACHES = frozenset({"detach", "data"})
# The tensor itself, changed in place, with the same entries.
RETURNS_ITSELF = frozenset({"requires_grad_", "detach_"})
WITHOUT_HISTORY = READS | DETACHES | {"detach_"}

# The argument that holds what a function gives: torch.add(total, count, out=total).
GIVEN_RESULT = "out"

# The same entries at another place, in another layout, or in another floating-point type.
MOVES = frozenset({"to", "cuda", "cpu"})
FLOAT_CASTS = frozenset({"float", "double", "half", "bfloat16"})
SAME_TENSOR = MOVES | FLOAT_CASTS | {"type", "type_as", "as_subclass", "clone", "contiguous"}
SAME_ARRAY = SAME_TENSOR | {"astype", "copy"}  # numpy's among them; a dict has `copy` as well
SAME_ENTRIES = SAME_ARRAY | DETACHES | RETURNS_ITSELF
COPIES = DETACHES | {"cpu", "clone"}

# Entries cut to whole numbers, or to a mask.
INTEGER_CASTS = frozenset({"long", "int", "short"})
MASK_CASTS = frozenset({"bool", "byte"})

# The same entries in another shape. VIEWS are given it, FLATTENS have a single dimension.
VIEWS = frozenset({"view", "reshape"})
FLATTENS = frozenset({"flatten", "ravel"})
SQUEEZES = frozenset({"squeeze", "unsqueeze"})
RESHAPES = VIEWS | FLATTENS | SQUEEZES
# The same entries, repeated along a dimension.
REPEATS = frozenset({"expand", "expand_as"})
COPIED_ALONG = frozenset({"repeat", "repeat_interleave", "tile"})
# The same entries with their dimensions in another order: methods, attributes.
TRANSPOSES = frozenset({"t", "transpose", "permute", "swapaxes", "movedim"})
TRANSPOSED = frozenset({"T", "mT"})
# Parts of a tensor as a tuple.
SPLITS = frozenset({"split", "chunk", "tensor_split", "unbind"})

# What a tensor is, whatever its shape and its entries are: attributes, methods.
TYPE_ATTRIBUTES = frozenset({"dtype", "device", "layout", "is_cuda", "requires_grad", "itemsize", "ndim"})
TYPE_METHODS = frozenset(
    {"dim", "ndimension", "element_size", "get_device", "is_contiguous", "is_floating_point"}
)  # fmt: skip
# That, and how large it is.
COUNT_METHODS = frozenset({"numel", "nelement"})  # how many entries it has
SHAPE_ATTRIBUTES = TYPE_ATTRIBUTES | {"shape", "nbytes"}
SHAPE_METHODS = TYPE_METHODS | COUNT_METHODS | {"size", "stride"}
# The place of a tensor in the graph of the backward pass: attributes, methods.
GRAPH = frozenset({"grad", "grad_fn", "backward", "zero_grad", "register_hook", "retain_grad"})

# A mask: for each entry, or pair of entries, whether something holds.
COMPARISONS = frozenset({
    "eq", "ne", "gt", "lt", "ge", "le", "logical_and", "logical_or", "logical_not", "logical_xor", "isin", "isfinite",
    "isnan",
})  # fmt: skip
# As many entries as a mask, or the entries themselves, have it.
PLACES = frozenset({"nonzero", "argwhere", "flatnonzero"})
CHOOSES = PLACES | {"masked_select", "unique"}
# Put rows, or entries, at places that are given; with "_" at their end in place.
# Those that add up, or reduce, what comes to one place.
ACCUMULATES = frozenset({"scatter_add", "scatter_reduce", "index_add", "index_reduce"})
SCATTERS = ACCUMULATES | {"scatter", "index_copy", "index_put", "index_fill", "masked_scatter"}
# Places of entries, which have no gradient.
INDICES = PLACES | {"argmax", "argmin", "argsort"}
# Entries and their places along a dimension, as a pair.
VALUES_AND_INDICES = frozenset({"max", "min", "topk", "sort", "median", "mode", "kthvalue", "cummax", "cummin"})

# One number, or one per row, of several entries.
SUMS_AND_MEANS = frozenset({"sum", "mean", "nansum", "nanmean"})
MATRIX_NORMS = frozenset({"norm", "matrix_norm"})  # of torch.linalg, with an order
NORMS = MATRIX_NORMS | {"vector_norm", "frobenius_norm"}
SPREADS = NORMS | {
    "std", "var", "std_mean", "var_mean", "logsumexp", "prod", "cov", "corrcoef", "dist",
}  # not linear in the entries  # fmt: skip
STATISTICS = SUMS_AND_MEANS | {"std", "var", "std_mean", "var_mean"}  # that a normalisation keeps
EXTREMES = frozenset({"max", "min", "amax", "amin", "aminmax"})
REDUCTIONS = SUMS_AND_MEANS | SPREADS | {"max", "min", "median", "any", "all"}
# Each entry is computed from all others along one axis: the place of the axis among the arguments after the tensor,
# and the axis where none is given.
ALONG_AXIS = {
    "softmax": (0, 1), "log_softmax": (0, 1), "softmin": (0, 1), "cumprod": (0, 0), "logcumsumexp": (0, 0),
    "cummax": (0, 0), "cummin": (0, 0), "normalize": (1, 1), "cosine_similarity": (1, 1),
    # the entries of another place
    "flip": (0, 0), "flipud": (0, 0), "roll": (1, 0), "diff": (1, -1), "trapezoid": (2, -1), "trapz": (2, -1),
    "cumulative_trapezoid": (2, -1), "gradient": (9, 0), "glu": (0, -1), "vecdot": (1, -1), "cross": (1, -1),
    "gumbel_softmax": (3, -1), "index_select": (0, 0), "narrow": (0, 0), "select": (0, 0), "gather": (0, 0),
    "take_along_dim": (1, 0), "msort": (9, 0), "unique_consecutive": (9, 0), "rot90": (1, 0),
    "fft": (1, -1), "ifft": (1, -1), "rfft": (1, -1), "irfft": (1, -1),
}  # fmt: skip
# Tensors that only tell the shape or the type of what is made.
SHAPED_LIKE = frozenset({"view_as", "reshape_as", "type_as", "expand_as"})
# One number of a whole numpy array, which has no gradient.
NUMBERS_OF_ARRAYS = frozenset(f"numpy.{name}" for name in ("mean", "median", "sum", "std", "var", "max", "min"))
# How often each value, or pair of values, occurs.
COUNTS = frozenset({"bincount", "histc", "histogram", "histogram2d", "confusion_matrix", "count_nonzero"})
# Entries by their order among all.
SORTS_ALL = frozenset({"median", "nanmedian", "quantile", "nanquantile", "percentile", "unique"})  # without an axis
SORTS = SORTS_ALL | {"sort", "argsort", "topk", "kthvalue", "mode", "cumsum"}
# How many arguments other functions along an axis have between the tensor and the axis, where they have some.
BEFORE_AXIS = {
    **dict.fromkeys(NORMS | {"topk", "kthvalue", "quantile", "nanquantile", "percentile", "normalize"}, 1),
    "dist": 2,
}
# Several tensors as one.
JOINS = frozenset({"stack", "cat", "concat", "concatenate", "hstack", "vstack"})
SUMS_OF_SEVERAL = frozenset({"sum", "fsum"})  # Python's

# Entries kept away from zero, or from too large a value.
CLAMPS = frozenset({"clamp", "clamp_min", "clip"})
# A function of each entry that is not linear.
NONLINEAR = frozenset({
    "sqrt", "rsqrt", "exp", "log", "log1p", "log10", "log2", "pow", "square", "sigmoid", "tanh", "reciprocal",
})  # fmt: skip
# The operator that a function, or a method, is; with `_` at its end it is in place.
OPERATORS: dict[str, ast.operator] = {
    "pow": ast.Pow(), "mul": ast.Mult(), "multiply": ast.Mult(), "add": ast.Add(), "sub": ast.Sub(),
    "subtract": ast.Sub(), "div": ast.Div(), "divide": ast.Div(), "true_divide": ast.Div(),
}  # fmt: skip
# Tensors of the same length as what is given: each row is computed from the same row of it.
ENTRYWISE = COMPARISONS | NONLINEAR | REPEATS | JOINS | CLAMPS | {
    "argmax", "argmin", "softmax", "log_softmax", "relu", "erf", "abs", "neg", "round", "floor", "repeat", "gather",
    "topk", "sort", "argsort", "cumsum", "sub", "add", "mul", "div", "sub_", "add_", "mul_", "div_", "clamp_", "fill_",
    "where", "masked_fill", "view_as", "reshape_as", "split", "chunk", "one_hot", "interpolate", "resize", "upsample",
    "normalize", "pad", "cosine_similarity", "pairwise_distance", "array", "asarray", "tensor", "as_tensor",
    "from_numpy", "zeros_like", "ones_like", "rand_like", "randn_like", "full_like", "maximum", "minimum", "select",
    "unbind",
}  # fmt: skip
# Functions and methods that give a tensor, or parts of one: an iteration over it gives what is computed from theirs.
# Without the names that data sets have, too.
ARRAY_FUNCTIONS = (
    SAME_TENSOR | DETACHES | READS | RESHAPES | TRANSPOSES | REPEATS | SPLITS | set(ALONG_AXIS) | ENTRYWISE
) - {"select", "sort", "repeat"}

# New tensors of a shape that is given: with fixed entries, with random ones, by the type of another tensor.
FILLED = frozenset({"zeros", "ones", "full", "empty", "eye", "arange", "linspace"})
DRAWN = frozenset({"rand", "randn", "randint", "randperm", "normal", "uniform"})
FILLED_LIKE = frozenset({"zeros_like", "ones_like", "full_like"})
DRAWN_LIKE = frozenset({"rand_like", "randn_like"})
NEW = frozenset({"new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"})
TENSOR_CLASSES = frozenset({"Tensor", "FloatTensor", "LongTensor", "DoubleTensor", "BoolTensor", "Variable"})
# Tensors of what numpy or Python holds.
CONVERTS = frozenset({"tensor", "as_tensor", "from_numpy"})

# Full names. Tensors of zeros; the numbers of places; tensors of the shape of another one.
ZEROS = frozenset({"torch.zeros", "numpy.zeros", "torch.zeros_like", "numpy.zeros_like"})
RANGES = frozenset({"torch.arange", "torch.linspace", "torch.range"})
LIKE_ANOTHER = frozenset({f"torch.{name}" for name in FILLED_LIKE | DRAWN_LIKE} - {"torch.full_like"})
# What is given back has nothing of the entries of a tensor among the arguments; Python's own functions among them.
ENTRY_FREE = LIKE_ANOTHER | {
    "isinstance", "type", "hasattr", "id", "callable", "iter", "torch.is_tensor", "torch.manual_seed", "time.time",
}  # fmt: skip
# Methods that give a tensor another size in place, and what would be left of the old entries.
RESIZES = frozenset({"resize_", "resize_as_"})
# Matrix products with the number of their arguments: full names, methods.
PRODUCTS = {"torch.matmul": 2, "torch.mm": 2, "torch.addmm": 3}
PRODUCT_METHODS = {"mm": 1, "matmul": 1, "addmm": 2, "addmm_": 2}
# Those of each matrix in a row of them.
BATCHED_PRODUCTS = {"torch.bmm": 2, "torch.baddbmm": 3}
BATCHED_METHODS = {"bmm": 1, "baddbmm": 2}
DOTS = frozenset({"dot", "vdot"})  # the sum of the products of entries, of two vectors
# Normalisations, and the first axis over which they run.
NORMALIZED_FROM = {"layer_norm": 1, "group_norm": 1, "instance_norm": 2, "rms_norm": 1}
EINSUMS = frozenset({"torch.einsum", "einops.einsum"})
EINOPS_REDUCE = "einops.reduce"
# An entry for each pair of those of two tensors; of the rows of two matrices; of those of one vector; their places.
PAIRING = frozenset({"torch.outer", "torch.ger", "torch.kron", "torch.cartesian_prod"})
PAIRING_METHODS = frozenset({"outer", "ger", "kron"})
ROW_PRODUCTS = frozenset({"torch.inner", "torch.nn.functional.linear"})
COMBINATIONS = "torch.combinations"
PLACES_OF_PAIRS = frozenset({"triu_indices", "tril_indices", "combinations"})
TENSOR_PRODUCT = "torch.tensordot"  # over the axes that it is given
# Distances of each row of one matrix to each row of another, of a matrix to its own rows.
DISTANCES = frozenset({"torch.cdist"})
DISTANCES_WITHIN = frozenset({"torch.pdist", "torch.nn.functional.pdist"})
PADS_TO_LONGEST = frozenset({"torch.nn.utils.rnn.pad_sequence"})
PACK_SEQUENCE = "torch.nn.utils.rnn.pack_padded_sequence"
