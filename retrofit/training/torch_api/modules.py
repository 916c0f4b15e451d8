"""Modules of torch.nn: wrappers, layers, parameters, and the switches of the backward pass."""

from __future__ import annotations

from . import runtime
from .tensors import DETACHES, FLOAT_CASTS, GRAPH, MOVES, RETURNS_ITSELF, SAME_TENSOR

# Packages of modules: of the layers, of the classes that a project's own modules are derived from.
LAYER_PACKAGE = "torch.nn."
GRAPH_LAYER_PACKAGES = ("torch_geometric.nn.", "dgl.nn.")
MODULE_PACKAGES = (LAYER_PACKAGE, "torchvision.models.")
MODEL_LIBRARIES = ("transformers.", "peft.", "timm.")  # with classes of models among others
ANY_MODULE = frozenset({"torch.nn.Module", "torch.nn.modules.module.Module"})  # the class that all of them have

# Wrappers of a model: torch's for the GPUs of one process, as objects and as functions of a model and its inputs.
DATA_PARALLEL = frozenset(
    {"torch.nn.DataParallel", "torch.nn.parallel.DataParallel", "torch.nn.parallel.data_parallel.DataParallel"}
)
DATA_PARALLEL_FUNCTIONS = frozenset(
    {"torch.nn.parallel.data_parallel", "torch.nn.parallel.data_parallel.data_parallel"}
)
DATA_PARALLEL_PARAMETERS = ["module", "inputs", "device_ids", "output_device", "dim", "module_kwargs"]
# Those that copy a module to several GPUs, or run such copies, as DataParallel does inside.
COPIES_TO_GPUS = frozenset({
    "torch.nn.parallel.replicate", "torch.nn.parallel.replicate.replicate", "torch.nn.parallel.parallel_apply",
    "torch.nn.parallel.parallel_apply.parallel_apply", "torch.cuda.comm.broadcast_coalesced",
    "torch.nn.parallel.comm.broadcast_coalesced",
})  # fmt: skip
# Those that average the gradients of several processes.
DDP = frozenset({
    "torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed.DistributedDataParallel",
    "apex.parallel.DistributedDataParallel",
})  # fmt: skip
AVERAGING_WRAPPERS = DDP | runtime.MODEL_WRAPPERS
# Those that run the model as compiled code.
COMPILE = "torch.compile"
COMPILING = frozenset({COMPILE, "torch.jit.script"})
# Those that put adapters into the layers of the model that they are given.
ADAPTING = frozenset({"peft.get_peft_model", "peft.PeftModel.from_pretrained", "peft.prepare_model_for_kbit_training"})
# Those that leave a model the one that a name held before, with the position of the model among their arguments.
PLAIN_WRAPPERS = {**dict.fromkeys(DATA_PARALLEL | COMPILING | ADAPTING, 0), runtime.WITHOUT_DATA_PARALLEL: 1}
WRAPPERS = frozenset({*PLAIN_WRAPPERS, *AVERAGING_WRAPPERS})
# Attributes and methods that a wrapper has itself, and that give what it wraps among other things.
OF_ANY_MODULE = frozenset(
    {"__class__", "children", "named_children", "modules", "named_modules", "_modules", "__dict__"}
)

# Methods of a module, or of a tensor, that give the object itself, or one that is the same wherever it is used.
SAME_OBJECT = SAME_TENSOR | (DETACHES - {"data"}) | {"train", "eval", "requires_grad_", "apply", "share_memory"}
# Class methods of libraries that create an object of the class that they are called on, or of one derived from theirs.
CREATING = frozenset({"from_pretrained", "from_config", "_from_config", "load_from_checkpoint"})
# Methods that move a module's parameters, or change their type: they are other objects from there on.
MOVING = MOVES | FLOAT_CASTS
# Methods of torch and of its libraries that give the parameters other values and leave the module what it is.
FILLING = frozenset({"apply", "load_state_dict", "init_weights"})
# Those that draw a module's weights again; the functions that draw, or fill, one tensor of weights.
DRAWS_WEIGHTS = frozenset({"reset_parameters", "init_weights"})
INIT_PACKAGE = "torch.nn.init."
# Embeddings that can scale the rows which they look up, in place, with their parameters; the function that does it.
WITH_MAX_NORM = {
    "torch.nn.Embedding": ["num_embeddings", "embedding_dim", "padding_idx", "max_norm"],
    "torch.nn.EmbeddingBag": ["num_embeddings", "embedding_dim", "max_norm"],
    "torch.nn.Embedding.from_pretrained": ["embeddings", "freeze", "padding_idx", "max_norm"],
    "torch.nn.EmbeddingBag.from_pretrained": ["embeddings", "freeze", "max_norm"],
    "torch.nn.functional.embedding": ["input", "weight", "padding_idx", "max_norm"],
    "torch.nn.functional.embedding_bag": ["input", "weight", "offsets", "max_norm"],
}
RENORMALISES = frozenset({"torch.embedding_renorm_"})
LOAD_STATE_DICT = ["state_dict", "strict", "assign"]  # its parameters
# What a library calls of the modules and objects that it is given.
CALLED_FROM_OUTSIDE = ("forward",)

# Methods that list a module's parameters, its own layers, all layers in it.
PARAMETERS = frozenset({"parameters", "named_parameters"})
CHILDREN = frozenset({"children", "named_children"})
MODULES = frozenset({"modules", "named_modules"})
# Other ways to a layer than its name.
NAMELESS_ACCESS = CHILDREN | {"_modules", "__dict__", "get_submodule", "__getattr__", "__getattribute__"}
# Methods that run no layer.
RUNS_NOTHING = PARAMETERS | {
    "load_state_dict", "state_dict", "train", "eval", "to", "cuda", "requires_grad_", "zero_grad", "buffers",
    "named_buffers", "get_buffer", "get_parameter", "_named_members",
}  # fmt: skip
# Layers that take the samples along the second dimension unless they are told batch_first=True.
SEQUENCE_FIRST = frozenset(
    f"torch.nn.{name}" for name in (
        "RNN", "LSTM", "GRU", "Transformer", "TransformerEncoderLayer", "TransformerDecoderLayer", "MultiheadAttention",
    )
)  # fmt: skip
# Stacks of such a layer, which is their first argument.
STACKS = frozenset({"torch.nn.TransformerEncoder", "torch.nn.TransformerDecoder"})
PARAMETER_CLASSES = frozenset({"torch.nn.Parameter", "torch.nn.parameter.Parameter"})
# Containers of modules, with how they are given them: as a list, as a dict, or one after the other.
HOLDERS = {"torch.nn.ModuleList": "list", "torch.nn.ModuleDict": "dict", "torch.nn.Sequential": "separate"}
MODULE_CONTAINERS = frozenset(HOLDERS)
PARAMETER_CONTAINERS = frozenset({"torch.nn.ParameterList", "torch.nn.ParameterDict"})
PARAMETERS_OF_LAYERS = frozenset({"weight", "bias"})
REGISTER_BUFFER = "register_buffer"
# Methods of a module that set an attribute of it by name.
SETS_ATTRIBUTE = frozenset({"add_module", "register_module", "register_parameter"})

# Layers of torch.nn by the beginning of their names: with parameters; full names of those that draw random numbers.
WITH_PARAMETERS = (
    "Linear", "Bilinear", "Conv", "LSTM", "GRU", "RNN", "Embedding", "BatchNorm", "LayerNorm", "GroupNorm",
    "MultiheadAttention", "Transformer", "PReLU",
)  # fmt: skip
DROPOUT = frozenset(f"torch.nn.{name}" for name in ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout"))
DROPOUT_FUNCTIONS = frozenset(
    f"torch.{name}" for name in (
        "dropout", "nn.functional.dropout", "nn.functional.dropout1d", "nn.functional.dropout2d",
        "nn.functional.dropout3d", "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout",
    )
)  # fmt: skip
GUMBEL = frozenset({"torch.nn.functional.gumbel_softmax"})
# Layers that drop entries unless they are told not to.
WITH_DROPOUT = frozenset(
    f"torch.nn.{name}" for name in ("Transformer", "TransformerEncoderLayer", "TransformerDecoderLayer")
)
# Models of torchvision and timm that have BatchNorm, by the beginning of the name of the function that makes them.
WITH_BATCHNORM = (
    "resnet", "resnext", "wide_resnet", "densenet", "mobilenet", "efficientnet", "shufflenet", "googlenet",
    "inception", "mnasnet", "regnet", "deeplabv3", "fcn_", "lraspp",
)  # fmt: skip
# Functions that give the BatchNorm layers of a model the statistics of all ranks.
SYNC_BATCHNORM = frozenset({
    "torch.nn.SyncBatchNorm.convert_sync_batchnorm", "torch.nn.modules.batchnorm.SyncBatchNorm.convert_sync_batchnorm",
    "apex.parallel.convert_syncbn_model", runtime.CONVERT_SYNC_BATCHNORM,
})  # fmt: skip

# Functions that compute the statistics of BatchNorm layers again, from the batches of a loader.
UPDATES_BATCHNORM = frozenset({"torch.optim.swa_utils.update_bn", "torchcontrib.optim.SWA.bn_update"})

# Methods that change what they belong to, and show nothing of what they are given: a tensor, a module, a loader, a
# GradScaler, a stream, a thread.
CHANGES_ITSELF = RETURNS_ITSELF | GRAPH | MOVES | {
    "copy_", "zero_", "set_", "train", "eval", "apply", "load_state_dict", "register_buffer", "register_forward_hook",
    "clip_grad_norm_", "set_epoch", "scale_loss", "unscale_", "manual_backward", "accumulate", "manual_seed",
    "set_grad_enabled", "empty_cache", "synchronize", "record_stream", "wait_stream", "join", "start", "close", "free",
}  # fmt: skip

# Functions that run a model themselves: to export, to trace, to count.
RUN_A_MODEL = frozenset(
    {
        "torch.onnx.export",
        "torch.jit.trace",
        "torch.jit.script",
        "torch.export.export",
        "thop.profile",
        "torchsummary.summary",
        "torchinfo.summary",
        "torchsummary.summary_string",
        "torchsummaryX.summary",
        "torchscan.summary",
        "torchstat.stat",
        "pytorch_model_summary.summary",
        "modelsummary.summary",
        "ptflops.get_model_complexity_info",
    }
)

# Gradients: contexts and decorators without them, with them, functions that compute them.
GRADIENTS_OFF = frozenset(
    {"torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad", "torch.autograd.inference_mode"}
)
SET_GRADIENTS = frozenset({"torch.set_grad_enabled", "torch.autograd.set_grad_enabled"})
GRADIENTS_ON = frozenset({
    "torch.enable_grad", "torch.autograd.enable_grad", "torch.autograd.grad_mode.enable_grad", "torch.autograd.grad",
    "torch.autograd.backward",
})  # fmt: skip
# Those of them that give gradients as values: of their argument `inputs`, of what the function that they make is
# given; libraries that train a copy of a model inside a step.
GRADIENT_FUNCTIONS = frozenset({"torch.autograd.grad"})
GRADIENT_TRANSFORMS = frozenset({
    f"{package}.{name}" for package in ("torch.func", "functorch")
    for name in ("grad", "grad_and_value", "vjp", "jacrev", "jacfwd", "hessian")
})  # fmt: skip
INNER_LOOPS = frozenset({
    "higher.innerloop_ctx", "higher.create_diff_optim", "learn2learn.algorithms.MAML", "learn2learn.algorithms.MetaSGD",
})  # fmt: skip
# Functions that copy a model, and methods that hook a function on a layer.
COPIES = frozenset({"copy.deepcopy", "copy.copy"})
HOOKING = frozenset({
    "register_forward_pre_hook", "register_forward_hook", "register_full_backward_hook", "register_backward_hook",
    "register_full_backward_pre_hook",
})  # fmt: skip
HOOKS_GRADIENT = "register_hook"  # of a tensor
DERIVING = ("torch.autograd.functional.", "torch.func.", "functorch.")  # packages
# Packages that attack, or explain, a model by the gradients of its inputs.
ATTACKING = (
    "torchattacks.", "foolbox.", "advertorch.", "autoattack.", "robustbench.", "cleverhans.", "art.attacks.",
    "eagerpy.", "deeprobust.", "captum.",
)  # fmt: skip
# Switches of DDP by which it does not wait for gradients: of unused layers, of the first steps of an accumulation.
UNUSED_PARAMETER_OPTIONS = frozenset({"find_unused_parameters", "static_graph"})
NO_SYNC = frozenset({"no_sync", "require_backward_grad_sync", "gradient_sync"})
# Functions on gradients whose result is the same on all ranks after the gradients are.
CLIP_GRADIENTS = frozenset({"torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_norm"})
# Names of the flag that is true while a model trains: the attribute of a module, and arguments that get it.
TRAINING_MODES = frozenset({"training", "is_training", "is_train", "train_mode"})


def is_layer_class(name: str) -> bool:
    """Return whether a full name is that of a class of layers, and not of a function: torch.nn.functional.relu."""
    parts = name.removeprefix(LAYER_PACKAGE).split(".")
    return name.startswith(LAYER_PACKAGE) and any(part[:1].isupper() for part in parts)
