"""Functions of torch by the entries of a tensor that each entry of their result is computed from."""

from __future__ import annotations

from .tensors import CLAMPS, COMPARISONS, DRAWN_LIKE, FILLED_LIKE, NONLINEAR, SAME_ENTRIES

# Modules of which all functions are known by the tables here and in tensors.py.
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
    "embedding_bag", "expand", "flatten", "gather", "hsplit", "hstack", "linear", "narrow",
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
