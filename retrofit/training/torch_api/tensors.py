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
SHAPED_IN_PLACE = frozenset({"t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_"})
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
DISTINCT = frozenset({"unique", "unique_consecutive"})
CHOOSES = PLACES | DISTINCT | {"masked_select"}
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

# Modules of torch of which all functions are known by the tables here: what is in none of them couples the samples.
KNOWN_MODULES = frozenset({"torch", "torch.nn.functional", "torch.linalg", "torch.special", "torch.fft"})

# Each entry is computed from the entry at its place, or from one of each of several tensors.
_ARITHMETIC = {
    "abs", "absolute", "add", "addcdiv", "addcmul", "angle", "complex", "conj", "conj_physical", "copysign", "deg2rad",
    "div", "divide", "dequantize", "fill", "float_power", "floor_divide", "fmax", "fmin", "fmod", "frac", "gcd",
    "heaviside", "hypot", "imag", "lcm", "ldexp", "lerp", "maximum", "minimum", "mul", "multiply", "nan_to_num", "neg",
    "negative", "nextafter", "polar", "positive", "rad2deg", "real", "remainder", "resolve_conj", "resolve_neg", "rsub",
    "sgn", "sign", "signbit", "sub", "subtract", "true_divide", "ceil", "fix", "floor", "frexp", "round", "trunc",
    "bucketize", "clamp_max", "mse", "xor",
}  # fmt: skip
_ANALYTIC = {
    "acos", "acosh", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "asin", "asinh", "atan",
    "atan2", "atanh", "cos", "cosh", "sin", "sinc", "sinh", "tan", "digamma", "entr", "erf", "erfc", "erfcx", "erfinv",
    "exp2", "expit", "expm1", "gammainc", "gammaincc", "gammaln", "i0", "i0e", "i1", "i1e", "igamma", "igammac",
    "lgamma", "log_ndtr", "logaddexp", "logaddexp2", "logit", "multigammaln", "mvlgamma", "ndtr", "ndtri", "polygamma",
    "psi", "xlog1py", "xlogy", "zeta", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1",
}  # fmt: skip
_ACTIVATIONS = {
    "alpha_dropout", "celu", "dropout", "dropout1d", "dropout2d", "dropout3d", "elu", "feature_alpha_dropout",
    "feature_dropout", "gelu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "logsigmoid", "mish",
    "prelu", "relu", "relu6", "rrelu", "selu", "silu", "softplus", "softshrink", "softsign", "tanhshrink", "threshold",
    "bernoulli", "poisson",
}  # fmt: skip
_TESTS = {
    "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "greater",
    "greater_equal", "isclose", "isinf", "isneginf", "isposinf", "isreal", "less", "less_equal", "not_equal",
}  # fmt: skip
OF_EACH_ENTRY = frozenset(
    _ARITHMETIC | _ANALYTIC | _ACTIVATIONS | _TESTS | NONLINEAR | COMPARISONS | CLAMPS | SAME_ENTRIES
    | FILLED_LIKE | DRAWN_LIKE | {"empty_like", "randint_like", "where", "masked_fill", "take_along_dim", "softmax_"}
)  # fmt: skip

# Each row is computed from the row at its place, where the samples are in the first axis.
OF_EACH_ROW = frozenset({
    "affine_grid", "argmax", "argmin", "atleast_1d", "atleast_2d", "atleast_3d", "bilinear", "broadcast_tensors",
    "broadcast_to", "cdist", "channel_shuffle", "chunk", "column_stack", "diag_embed", "dsplit", "dstack", "embedding",
    "embedding_bag", "expand", "flatten", "fliplr", "gather", "hsplit", "hstack", "linear", "narrow",
    "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "moveaxis", "movedim", "multi_head_attention_forward",
    "one_hot", "pad", "constant_pad_nd", "permute", "pixel_shuffle", "pixel_unshuffle", "ravel", "repeat_interleave",
    "reshape", "select", "split", "split_with_sizes", "squeeze", "swapaxes", "swapdims",
    "t", "tensor_split", "tile", "transpose", "unbind", "unflatten", "unsqueeze", "view_as_complex", "view_as_real",
    "einsum", "bmm", "baddbmm", "matmul", "mm", "mv", "addmm", "addmv", "dot", "vdot", "inner", "outer", "ger", "kron",
    "masked_select", "nonzero", "argwhere", "combinations", "cartesian_prod", "pdist", "searchsorted",
    "pairwise_distance", "numel", "is_tensor", "tensor", "as_tensor", "from_numpy", "asarray", "save", "typename",
    "is_complex", "is_floating_point", "is_nonzero", "equal", "allclose", "addr", "stack", "cat", "concat",
    "concatenate", "vstack", "row_stack", "sum", "mean", "nansum", "nanmean", "all", "any", "scatter", "scatter_add",
    "scatter_reduce", "index_add", "index_copy", "index_put", "index_fill", "masked_scatter", "tensordot", "broadcast",
    "multinomial", "fold", "clone", "detach", "squeeze_copy", "unravel_index", "unpack", "sparse_mask", "to_dense",
    "fftshift", "ifftshift", "fftfreq", "rfftfreq", "stft", "istft", "native_dropout", "lstm", "gru",
})  # fmt: skip
# The first axis of a batch that is not a row of its own: over it windows go, or sums of products.
FROM_AXIS = {
    **{f"{kind}{n}d": 2 for kind in ("avg_pool", "max_pool", "lp_pool", "max_unpool") for n in (1, 2, 3)},
    **{f"adaptive_{kind}_pool{n}d": 2 for kind in ("avg", "max") for n in (1, 2, 3)},
    **{f"fractional_max_pool{n}d": 2 for n in (2, 3)},
    **{f"conv{kind}{n}d": 1 for kind in ("", "_transpose") for n in (1, 2, 3)},
    "interpolate": 2, "upsample": 2, "upsample_bilinear": 2, "upsample_nearest": 2, "grid_sample": 1,
    "local_response_norm": 1, "scaled_dot_product_attention": 1, "bmm": 1, "baddbmm": 1,
}  # fmt: skip

# Of a matrix as a whole, the last two axes: of one that is square, which rows of samples are not, and of any.
OF_SQUARES = frozenset({
    "cholesky", "cholesky_ex", "cholesky_inverse", "cholesky_solve", "det", "eig", "eigh", "eigvals", "eigvalsh", "inv",
    "inv_ex", "inverse", "ldl_factor", "logdet", "lu_solve", "matrix_exp", "matrix_power", "slogdet", "solve",
    "solve_ex", "solve_triangular", "symeig", "tensorinv", "tensorsolve", "triangular_solve",
})  # fmt: skip
OF_MATRICES = frozenset({
    "cond", "diag", "diagonal", "geqrf", "lstsq", "lu", "lu_factor", "matrix_rank", "nuclear_norm", "pca_lowrank",
    "pinv", "pinverse", "qr", "svd", "svd_lowrank", "svdvals", "trace", "vander", "tril", "triu", "fft2",
    "ifft2", "rfft2", "irfft2",
})  # fmt: skip
SHAPED_MATRICES = frozenset({"tril", "triu"})  # of attention weights, too
# Functions of a function, which they apply to each row.
MAPPED = frozenset({"torch.vmap", "torch.func.vmap", "functorch.vmap"})
# Of all entries, whatever the axes are.
OF_ALL_ENTRIES = frozenset({
    "block_diag", "fftn", "ifftn", "rfftn", "irfftn", "meshgrid", "take", "multi_dot", "chain_matmul", "renorm",
})  # fmt: skip


# Functions of libraries that give a mean over the samples of the labels and the predictions.
SAMPLE_MEANS = frozenset({
    "sklearn.metrics.accuracy_score", "sklearn.metrics.zero_one_loss", "sklearn.metrics.hamming_loss",
    "sklearn.metrics.mean_absolute_error", "sklearn.metrics.mean_squared_error",
})  # fmt: skip


def not_in_place(name: str) -> str:
    """Return the method that does the same as one that changes the shape of a tensor in place: transpose_.

    And as the runtime's squeeze_rows.
    """
    return name[:-1] if name in SHAPED_IN_PLACE else "squeeze" if name == "squeeze_rows" else name
