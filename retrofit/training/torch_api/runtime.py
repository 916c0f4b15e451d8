"""The functions of the runtime, as `convert` writes them: full names, whichever module they are reached through."""

from __future__ import annotations

from retrofit.analysis.files.runtime_names import RUNTIME


def _of_runtime(*names: str) -> frozenset[str]:
    return frozenset(f"{RUNTIME}.{name}" for name in names)


# Set-up: the process group, the numbers of the ranks, the device.
SETUP = f"{RUNTIME}.setup_distributed"
RANK_CALLS = _of_runtime("get_rank", "get_local_rank")
WORLD_SIZE_CALL = f"{RUNTIME}.get_world_size"
ONE_PROCESS_ONLY = f"{RUNTIME}.one_process_only"  # an error in several processes
IS_MAIN = f"{RUNTIME}.is_main_process"
SQUEEZE_ROWS = f"{RUNTIME}.squeeze_rows"
CHOOSE_GPU = _of_runtime("choose_gpu")
DEVICE_CHOICES = _of_runtime("own_device", "get_device", "get_local_rank")  # this rank's device, or its number
GPU_COUNT = f"{RUNTIME}.own_gpu_count"
VISIBLE_GPUS = f"{RUNTIME}.visible_gpus"

# Models, optimizers, learning rates.
DISTRIBUTE_MODELS = f"{RUNTIME}.distribute_models"  # of a dict or a list
MODEL_WRAPPERS = _of_runtime("distribute_model", "DDPWrapper", "FSDPWrapper") | {DISTRIBUTE_MODELS}
WITHOUT_DATA_PARALLEL = f"{RUNTIME}.data_parallel"  # of a class and a model
CONVERT_SYNC_BATCHNORM = f"{RUNTIME}.convert_sync_batchnorm"
DISTRIBUTE_PARAMETER = f"{RUNTIME}.distribute_parameter"
FITTING_KEYS = f"{RUNTIME}.fitting_keys"  # of a state_dict, with or without a wrapper's prefix
SCALE_OPTIMIZER = f"{RUNTIME}.scale_optimizer"
SAMPLES_PER_STEP = f"{RUNTIME}.samples_per_step"
SCALED_LR = f"{RUNTIME}.scaled_lr"
LR_SCALING = frozenset({SCALED_LR, SCALE_OPTIMIZER})

# Loaders: a rank's part of the training, of an evaluation; the same order on all ranks; workers of a rank.
TRAINING_SHARES = _of_runtime("distribute_loader")
KEEPS_BATCHES = "keep_batches"  # its parameter: no batch is split
KEEP_TOTAL_BATCH = f"{RUNTIME}.keep_total_batch"  # each rank has its rows of every batch
PAD_WHOLE = "pad_whole"  # its parameter: each rank makes whole batches, and takes its rows
EVALUATION_SHARES = _of_runtime("share_batches", "EvaluationBatches")
COUNTS_OF_LOSSES = _of_runtime("batch_count")  # what losses are divided by
SAME_BATCHES = _of_runtime("same_batches")
SAME_ORDER = SAME_BATCHES | _of_runtime("share_batches")
LOADER_WORKERS = f"{RUNTIME}.loader_workers"
OWN_DRAW = f"{RUNTIME}.own_draw"  # of a batch that the script draws itself, as rank 0 has it
OWN_SAMPLES = _of_runtime("own_part") | {OWN_DRAW}
WHOLE_BATCHES = f"{RUNTIME}.whole_batches"  # of a generator that takes a rank's samples for the training
BATCH_OF_RANKS = f"{RUNTIME}.batch_of_ranks"
SIZES_OF_RANKS = frozenset({BATCH_OF_RANKS, SAMPLES_PER_STEP})  # a batch size, as that of all ranks
DRAW_TOGETHER = f"{RUNTIME}.draw_together"  # runs a function
SET_EPOCH = f"{RUNTIME}.set_epoch"
OF_BATCH_IN_HAND = _of_runtime("own_batch_size")  # the samples that a rank has in the batch that it took last
OWN_BATCH_SIZES = OF_BATCH_IN_HAND | _of_runtime("micro_batch")  # a rank's part of a batch size
OWN_BATCHES = f"{RUNTIME}.own_batches"  # of a number of batches
RANK_SHARE = f"{RUNTIME}.rank_share"  # of a number of elements: DDP makes a mean over all ranks of what it divides

# Random numbers: the same on all ranks, then apart.
SEED_ALL = f"{RUNTIME}.seed_everything"
SAME_RANDOM_STATE = _of_runtime("share_random_state") | {SEED_ALL}
SPLIT_STREAMS = _of_runtime("split_random_streams", "distribute_loader") | OWN_SAMPLES

# Losses: of which DDP makes a mean, the sum over the batch of all ranks, one that all samples make together.
DISTRIBUTE_CRITERION = f"{RUNTIME}.distribute_criterion"
SUM_LOSS = f"{RUNTIME}.sum_loss"
CHOSEN_MEAN = f"{RUNTIME}.chosen_mean"  # of the elements that a mask leaves, of which ranks have different numbers
WHOLE_BATCH_LOSS = f"{RUNTIME}.whole_batch_loss"
WHOLE_BATCH_VALUE = f"{RUNTIME}.whole_batch_value"
GLOBAL_REDUCTIONS = _of_runtime("batch_sum", "batch_mean")  # over the batch of all ranks, with gradients
PART_OF_MEAN = f"{RUNTIME}.part_of_mean"  # a mean, for its gradients with respect to samples
BATCH_ROWS = f"{RUNTIME}.batch_rows"  # of all ranks, with gradients
GATHER_BATCH = f"{RUNTIME}.gather_batch"  # the samples of all ranks, without gradients
LOSS_READS = _of_runtime("reduce_loss", "reduce_last_loss", "reduce_summed_loss")  # the same number on all ranks
SUM_ATTRIBUTES = f"{RUNTIME}.sum_attributes"  # of a meter

# Output: on rank 0 alone, by the answer that rank 0 has, one rank after the other.
QUIET_LOGGING = f"{RUNTIME}.quiet_logging"
SHARE_HYDRA_RUN = f"{RUNTIME}.share_hydra_run"
PRINT_MAIN = f"{RUNTIME}.print_main"
ON_MAIN = f"{RUNTIME}.on_main_process"
ANSWER = f"{RUNTIME}.answer_of_main"
OPEN_RUN = f"{RUNTIME}.open_run"
BROADCAST_OBJECT = f"{RUNTIME}.broadcast_object"
RUNS_ON_MAIN = frozenset({ON_MAIN, ANSWER, OPEN_RUN})  # the function that they are given
FROM_MAIN = frozenset({BROADCAST_OBJECT, ANSWER, OPEN_RUN})  # the same on all ranks, as rank 0 has it
MAIN_FIRST = f"{RUNTIME}.main_process_first"
PATH_ON_MAIN = f"{RUNTIME}.path_on_main"
START_TRACKER = f"{RUNTIME}.start_tracker"
OPEN_STUDY, RUN_TRIALS = f"{RUNTIME}.open_study", f"{RUNTIME}.run_trials"  # through which Optuna is called
BARRIER = f"{RUNTIME}.barrier"
ON_ANY_RANK = f"{RUNTIME}.on_any_rank"
SAVE_CHECKPOINT = f"{RUNTIME}.save_checkpoint"
READ_CHECKPOINT = f"{RUNTIME}.read_checkpoint"

# Collective calls that combine values of the ranks. A test compares these and the next ones with the docstrings of
# the runtime's functions, which say "Collective: every rank".
COMBINING = frozenset({
    *GLOBAL_REDUCTIONS, *FROM_MAIN, GATHER_BATCH, SUM_ATTRIBUTES, BARRIER, DRAW_TOGETHER, ON_ANY_RANK, MAIN_FIRST,
    SAVE_CHECKPOINT,
    *_of_runtime(
        "reduce_sum", "reduce_tensor_sum", "reduce_mean", "reduce_dict", "reduce_total", "gather_objects",
        "gather_batches", "batch_rows", "broadcast_buffers", "batch_count", "finish_sum", "sum_over_ranks",
    ),
})  # fmt: skip
# Those that every rank must call all the same.
WITH_COLLECTIVES = frozenset({
    *LOSS_READS, *MODEL_WRAPPERS, SETUP, OWN_DRAW, DISTRIBUTE_CRITERION, DISTRIBUTE_PARAMETER, START_TRACKER,
    WHOLE_BATCH_LOSS, CHOSEN_MEAN, SHARE_HYDRA_RUN, OPEN_STUDY, RUN_TRIALS,
    *_of_runtime(
        "EvaluationBatches", "ZeroModel", "ZeroOptimizer", "agreed_status", "backward", "begin_sum",
        "cleanup_distributed",
        "clip_grad_norm", "distribute_loader", "find_checkpoint", "finish_saves", "gather_state", "raise_together",
        "read_resumed", "save_position", "share_random_state", "whole_parameters", "wrap_optimizer",
    ),
})  # fmt: skip
# Those that give the same to every rank.
SAME_ON_ALL_RANKS = frozenset({
    *(COMBINING - {MAIN_FIRST, BARRIER, SAVE_CHECKPOINT, OPEN_RUN}), *LOSS_READS, WORLD_SIZE_CALL,
    *_of_runtime("raise_together", "global_batch", "whole_batch_size", "batch_of_ranks", "clip_grad_norm"),
    SAMPLES_PER_STEP,
    WHOLE_BATCHES,
})  # fmt: skip
