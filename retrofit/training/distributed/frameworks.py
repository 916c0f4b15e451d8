"""Frameworks that distribute a training themselves, and how a script that uses one is started."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis

TORCHRUN = "torchrun --nproc_per_node=N {script}"
# What is called -> the framework, and the command that starts the script on N GPUs.
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
SHARDING = {
    "torch.distributed.fsdp.FullyShardedDataParallel": "FSDP",
    "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel": "FSDP",
    "torch.distributed.fsdp.fully_shard": "FSDP2", "torch.distributed._composable.fsdp.fully_shard": "FSDP2",
    "fairscale.nn.FullyShardedDataParallel": "fairscale", "fairscale.nn.data_parallel.ShardedDataParallel": "fairscale",
    "fairscale.nn.data_parallel.FullyShardedDataParallel": "fairscale",
}  # fmt: skip
ADDING_UP = {f"torch.distributed.{name}" for name in ("all_reduce", "all_reduce_coalesced", "reduce_scatter_tensor")}
# An object of these that is only asked or printed by distributes nothing.
NEEDED_CALLS = {"Accelerate": {"prepare", "prepare_model", "backward"}, "Fabric": {"setup", "setup_module", "backward"}}


@dataclass(frozen=True)
class Framework:
    """A framework that runs a training on several processes: `owns_all` of it, or its gradients alone."""

    name: str
    start: str  # a command, with {script}
    call: ast.Call
    scope: Scope
    owns_all: bool

    def advice(self, script: str) -> str:
        return f"it is distributed already by {self.name}: start it with `{self.start.format(script=script)}`"


def find_framework(analysis: Analysis) -> Framework | None:
    """Return the framework whose calls the code that runs makes; importing one is nothing yet."""
    return analysis.fact("framework", lambda: _find_framework(analysis))


def averages_gradients(analysis: Analysis, in_batches: list[tuple[ast.AST, Scope]]) -> bool:
    """Return whether a function that runs for every batch adds up gradients over all processes by hand.

    The gradients may be collected before: `flat = torch.cat([p.grad.view(-1) for p in parameters])`.
    """
    for node, scope in in_batches:
        if isinstance(node, ast.Call) and analysis.called(node, scope) & ADDING_UP:
            parts = own_nodes(scope.node)
            if any(isinstance(part, ast.Attribute) and part.attr == "grad" for part in parts):
                return True
    return False


def _find_framework(analysis: Analysis) -> Framework | None:
    calls = [(node, scope) for node, scope in reached_nodes(analysis) if isinstance(node, ast.Call)]
    methods = {node.func.attr for node, _ in calls if isinstance(node.func, ast.Attribute) and node.args}
    found = None
    for node, scope in calls:
        for name in sorted(analysis.called(node, scope)):
            if name in TRAINERS:
                framework, start = TRAINERS[name]
                needed = NEEDED_CALLS.get(framework)
                if needed is None or methods & needed:
                    return Framework(framework, start, node, scope, owns_all=True)
            elif name in SHARDING and found is None:
                found = Framework(SHARDING[name], TORCHRUN, node, scope, owns_all=False)
    return found
