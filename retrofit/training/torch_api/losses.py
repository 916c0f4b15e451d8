"""Loss functions of torch and of other packages: their arguments, and how they treat the samples of a batch."""

from __future__ import annotations

import ast
import re

# The functions of torch.nn.functional that are losses, with the class of torch.nn that computes each.
CLASS_OF = {
    "cross_entropy": "CrossEntropyLoss", "nll_loss": "NLLLoss", "binary_cross_entropy": "BCELoss",
    "binary_cross_entropy_with_logits": "BCEWithLogitsLoss", "mse_loss": "MSELoss", "l1_loss": "L1Loss",
    "smooth_l1_loss": "SmoothL1Loss", "huber_loss": "HuberLoss", "kl_div": "KLDivLoss",
    "triplet_margin_loss": "TripletMarginLoss", "cosine_embedding_loss": "CosineEmbeddingLoss",
    "soft_margin_loss": "SoftMarginLoss", "multi_margin_loss": "MultiMarginLoss",
    "multilabel_margin_loss": "MultiLabelMarginLoss", "multilabel_soft_margin_loss": "MultiLabelSoftMarginLoss",
    "hinge_embedding_loss": "HingeEmbeddingLoss", "margin_ranking_loss": "MarginRankingLoss", "ctc_loss": "CTCLoss",
    "triplet_margin_with_distance_loss": "TripletMarginWithDistanceLoss", "gaussian_nll_loss": "GaussianNLLLoss",
    "poisson_nll_loss": "PoissonNLLLoss",
}  # fmt: skip
LOSS_FUNCTIONS = frozenset(CLASS_OF)
LOSS_MODULES = ("torch.nn", "torch.nn.modules.loss")
FUNCTIONS_MODULE = "torch.nn.functional"
NAMES_OF_LOSSES = re.compile("loss|crit", re.IGNORECASE)
FORMER_CLASSES = {"NLLLoss2d": "NLLLoss"}  # what torch keeps under an old name


def loss_class(name: str) -> str:
    """Return the name of a loss of torch by the full one of its class, "" for all else."""
    module, _, last = name.rpartition(".")
    last = FORMER_CLASSES.get(last, last)
    return last if module in LOSS_MODULES and last.endswith("Loss") else ""


def loss_taken(module: str, words: str, call: ast.Call | None) -> str:
    """Return the name of a loss that a text which is not known can be the name of, "" where it need not be of one.

    `words`: what a program calls it; `call`: that of it. The loss is one whose options count, so that the runtime looks
    at what the text turned out to name.
    """
    given = {keyword.arg for keyword in call.keywords} if call is not None else set[str]()
    is_loss = bool(NAMES_OF_LOSSES.search(words)) or not given.isdisjoint(OPTIONS)
    taken = "CrossEntropyLoss" if module in LOSS_MODULES else "cross_entropy" if module == FUNCTIONS_MODULE else ""
    return taken if is_loss else ""


def _both(*functions: str) -> frozenset[str]:
    """Return the names of loss functions together with those of their classes."""
    return frozenset({*functions, *(CLASS_OF[name] for name in functions)})


# Averaged over the targets that count: not those with `ignore_index`, each by the `weight` of its class.
COUNTED = _both("cross_entropy", "nll_loss")
# The label that these leave out unless they are told another one, and what of transformers gives it to labels.
IGNORED_LABEL = -100
IGNORING_COLLATORS = frozenset(
    f"DataCollatorFor{name}" for name in ("LanguageModeling", "WholeWordMask", "TokenClassification", "Seq2Seq")
)
# With a `weight` for each entry, or for each class, before the options that say how to reduce.
WEIGHTED = _both("binary_cross_entropy", "binary_cross_entropy_with_logits")
# Those options, old and new, are the first ones that they take.
UNWEIGHTED = _both("mse_loss", "l1_loss", "smooth_l1_loss", "kl_div")
# A loss for each entry of the output, averaged over all entries.
ELEMENTWISE = (UNWEIGHTED - _both("kl_div")) | WEIGHTED | _both("huber_loss")

# The options that say how to reduce, and all options of those that count targets, in their order.
REDUCTION_OPTIONS = ("size_average", "reduce", "reduction")
OPTIONS = ["weight", "size_average", "ignore_index", "reduce", "reduction"]

# What losses of packages give without an option: a sum over the batch, or an entry for each sample ("none"). Losses of
# packages that are not here, and have "loss" in their name, give a mean.
SUM_BY_DEFAULT, NONE_BY_DEFAULT = "sum", "none"
LIBRARY_REDUCTIONS = {
    **dict.fromkeys([
        ("torchcrf", "CRF"), ("pytorchcrf", "CRF"), ("allennlp", "ConditionalRandomField"),
        ("allennlp_light", "ConditionalRandomField"), ("warpctc_pytorch", "CTCLoss"), ("torch_baidu_ctc", "CTCLoss"),
        ("torch_baidu_ctc", "ctc_loss"),
    ], SUM_BY_DEFAULT),
    **dict.fromkeys([
        ("TorchCRF", "CRF"), ("fastNLP", "ConditionalRandomField"), ("torchvision", "sigmoid_focal_loss"),
        ("torchvision", "generalized_box_iou_loss"), ("torchvision", "distance_box_iou_loss"),
        ("torchvision", "complete_box_iou_loss"), ("fvcore", "sigmoid_focal_loss"), ("fvcore", "giou_loss"),
        ("fvcore", "diou_loss"), ("fvcore", "ciou_loss"), ("fvcore", "smooth_l1_loss"), ("kornia", "FocalLoss"),
        ("kornia", "focal_loss"), ("kornia", "BinaryFocalLossWithLogits"),
        ("kornia", "binary_focal_loss_with_logits"), ("entmax", "entmax15_loss"), ("entmax", "sparsemax_loss"),
    ], NONE_BY_DEFAULT),
}  # fmt: skip
# Where the options that say how to reduce are among the arguments of the call that computes the loss.
LIBRARY_POSITIONS = {("torchcrf", "CRF"): {"reduction": 3}, ("pytorchcrf", "CRF"): {"reduction": 3}}
# The values of options by which they divide by the tokens or frames of the batch that count.
COUNTS_TOKENS = {"reduction": "token_mean", "length_average": True}

# Endings of the classes of transformers whose loss is a mean over the labels that are not -100: those of tokens.
TOKEN_MODELS = (
    "LMHeadModel", "WithLMHead", "ForCausalLM", "ForMaskedLM", "ForPreTraining", "ForTokenClassification",
    "ForConditionalGeneration", "ForSeq2SeqLM", "ForSpeechSeq2Seq", "ForVision2Seq", "ForImageTextToText",
    "EncoderDecoderModel", "DoubleHeadsModel",
)  # fmt: skip
TOKEN_PACKAGES = frozenset({"transformers", "pytorch_transformers", "pytorch_pretrained_bert", "adapters"})

# Criteria of packages that compute something of all samples of a batch together.
COUPLING = {
    "segmentation_models_pytorch": {"DiceLoss", "JaccardLoss", "TverskyLoss", "MCCLoss"},
    "pytorch_toolbelt": {"DiceLoss", "JaccardLoss", "BinarySoftDiceLoss"},
    "catalyst": {"DiceLoss", "IoULoss", "TrevskyLoss", "FocalTrevskyLoss"},
    "kornia": {"LovaszHingeLoss", "LovaszSoftmaxLoss"},
    "lightly": {"NTXentLoss", "BarlowTwinsLoss", "VICRegLoss", "DCLLoss", "DCLWLoss", "CO2Regularizer"},
    "info_nce": {"InfoNCE"},
    "pytorch_metric_learning": {
        "ContrastiveLoss", "TripletMarginLoss", "NTXentLoss", "SupConLoss", "MultiSimilarityLoss", "CircleLoss",
        "LiftedStructureLoss", "GeneralizedLiftedStructureLoss", "NPairsLoss", "MarginLoss",
        "SignalToNoiseRatioContrastiveLoss", "FastAPLoss", "AngularLoss", "TupletMarginLoss", "NCALoss", "VICRegLoss",
        "IntraPairVarianceLoss",
    },
}  # fmt: skip
GATHERS_ITSELF = "gather_distributed"  # the option by which those of lightly bring the ranks' samples together
# Those that do so unless an option has this value.
COUPLING_UNLESS = {
    ("segmentation_models_pytorch", "LovaszLoss"): ("per_image", True),
    ("pytorch_toolbelt", "LovaszLoss"): ("per_image", True),
    ("pytorch_toolbelt", "BinaryLovaszLoss"): ("per_image", True),
}
# Those that do so where an option has this value.
COUPLING_WHERE = {
    **{("monai", name): ("batch", True) for name in (
        "DiceLoss", "DiceCELoss", "DiceFocalLoss", "GeneralizedDiceLoss", "GeneralizedDiceFocalLoss", "MaskedDiceLoss",
        "TverskyLoss",
    )},
    ("segmentation_models_pytorch", "FocalLoss"): ("normalized", True),
    ("pytorch_toolbelt", "FocalLoss"): ("normalized", True),
    ("pytorch_toolbelt", "BinaryFocalLoss"): ("normalized", True),
}  # fmt: skip
# Everything in these packages compares each sample of a batch with each other one.
METRIC_LEARNING = ("pytorch_metric_learning.losses.", "pytorch_metric_learning.miners.")
# The option by which models of transformers return the loss of a batch of pairs, each compared with all others.
RETURN_LOSS = "return_loss"
