"""Write docs/documents.md, the commands and calls of five guides and their tests: python docs/make_documents.py

A row is (line, ours, test): the line of the guide in our names (`train.py` for its script, `retrofit.distributed` for
its module); what does the same here, "" where it is the line itself; and the test that runs it as
`tests/file.py::function`, or the reason why there is none.
"""

from __future__ import annotations

from pathlib import Path

Row = tuple[str, str, str]
PAGE = Path(__file__).resolve().parent / "documents.md"
DOCUMENTS_TEST = "tests/test_documents.py"
TASKS_TEST = "tests/test_tasks.py"

HEAD = """\
# The commands and calls of five guides

This project is built so that what five guides to distributed training say can be typed here. Each table below is a
guide; its lines are in the names of this project: `train.py` for the guide's script, `retrofit.distributed` for its
module. *Ours* is what does the same here, where that is another line. The last column names the test that runs it, or
why none does.

Tests run on the CPU over gloo, in two processes: `--nproc_per_node=4` becomes 2, `--nnodes=2` becomes 1, the address
127.0.0.1 and the port a free one, and small sizes are added (`--layers 18 --crop_size 32 --dry_run` and so on). One
start can hold several lines: those whose words are among its words.
Written by `python docs/make_documents.py`; a test compares it with that.
"""

NEEDS_GPU = "needs an NVIDIA GPU"
OF_NCCL = "a variable of nccl, which needs GPUs; passed on to every rank as it is"

D, T = f"{DOCUMENTS_TEST}::", f"{TASKS_TEST}::"
SECOND_NODE = "tests/test_two_hosts.py::test_a_training_on_two_hosts"
ZERO_CONFIG = "tests/distributed/test_zero.py::test_options_of_a_deepspeed_file_give_the_same_training"
ZERO = "tests/distributed/test_zero.py::test_train_py_under_torchrun_leaves_a_checkpoint_for_one_process"

DOCUMENTS: dict[str, list[Row]] = {
    "DDP and FSDP guide": [
        ("torchrun --nproc_per_node=4 train.py --strategy ddp", "", D + "test_several_nodes_with_torchrun"),
        ("torchrun --nproc_per_node=4 train.py --strategy fsdp", "", D + "test_one_node"),
        (
            "torchrun --nproc_per_node=4 --nnodes=2 --node_rank=0 --master_addr=192.168.1.1 --master_port=29500 "
            "train.py --strategy ddp",
            "",
            D + "test_several_nodes_with_torchrun",
        ),
        (
            "torchrun --nproc_per_node=4 --nnodes=2 --node_rank=1 --master_addr=192.168.1.1 --master_port=29500 "
            "train.py --strategy ddp",
            "",
            SECOND_NODE,
        ),
        ("from retrofit.distributed import setup_distributed, cleanup_distributed, DDPWrapper", "", D + "test_imports"),
        ("rank, local_rank, world_size = setup_distributed()", "", D + "test_the_complete_ddp_example"),
        ("model = DDPWrapper(model)", "", D + "test_the_complete_ddp_example"),
        ("cleanup_distributed()", "", D + "test_the_complete_ddp_example"),
        ("from retrofit.distributed import *", "", D + "test_the_complete_ddp_example"),
        (
            'device = torch.device(f"cuda:{local_rank}")',
            "device = get_device()",
            D + "test_the_complete_ddp_example",
        ),
        (
            "sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank)",
            "",
            D + "test_the_complete_ddp_example",
        ),
        (
            "dataloader = DataLoader(dataset, batch_size=32, sampler=sampler)",
            "",
            D + "test_the_complete_ddp_example",
        ),
        ("optimizer = torch.optim.Adam(model.parameters())", "", D + "test_the_complete_ddp_example"),
        ("sampler.set_epoch(epoch)", "", D + "test_the_complete_ddp_example"),
        ('save_checkpoint(model, optimizer, epoch, "checkpoint.pt")', "", D + "test_the_complete_ddp_example"),
        ("from retrofit.distributed import FSDPWrapper", "", D + "test_imports"),
        (
            'FSDPWrapper(model, sharding_strategy="FULL_SHARD", min_num_params=1e6)',
            "",
            D + "test_sharding_strategies",
        ),
        ('sharding_strategy="SHARD_GRAD_OP"', "", D + "test_sharding_strategies"),
        ('sharding_strategy="NO_SHARD"', "", D + "test_sharding_strategies"),
        ('sharding_strategy="HYBRID_SHARD"', "", D + "test_sharding_strategies"),
        ("if is_main_process():", "", D + "test_the_complete_ddp_example"),
        ("rank = get_rank()", "", D + "test_the_complete_ddp_example"),
        ("world_size = get_world_size()", "", D + "test_the_complete_ddp_example"),
        ("barrier()", "", D + "test_the_complete_ddp_example"),
        ('metrics = {"loss": torch.tensor(0.5), "acc": torch.tensor(0.9)}', "", D + "test_the_complete_ddp_example"),
        ("avg_metrics = reduce_dict(metrics)", "", D + "test_the_complete_ddp_example"),
        (
            'checkpoint = load_checkpoint(model, optimizer, "checkpoint.pt")',
            "",
            D + "test_the_complete_ddp_example",
        ),
    ],
    "FSDP of a Transformer": [
        ("python train.py", "", T + "test_a_dry_run_writes_nothing"),
        (
            "torchrun --nproc_per_node=2 train.py",
            "torchrun --nproc_per_node=2 train.py --strategy fsdp",
            D + "test_one_node",
        ),
        (
            "python -m torch.distributed.launch --nproc_per_node=2 train.py",
            "python -m torch.distributed.launch --nproc_per_node=2 train.py --strategy fsdp",
            D + "test_the_old_launcher",
        ),
        ("bash run_fsdp.sh", "bash train_torchrun.sh --strategy fsdp", D + "test_one_node"),
        (
            "torchrun --nproc_per_node=2 run_fsdp.sh",
            "NPROC_PER_NODE=2 bash train_torchrun.sh --strategy fsdp",
            D + "test_one_node",
        ),
        (
            "def setup_distributed(): rank, world_size, local_rank from RANK, WORLD_SIZE, LOCAL_RANK",
            "rank, local_rank, world_size = setup_distributed()",
            D + "test_the_complete_ddp_example",
        ),
        (
            "MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)",
            "",
            D + "test_fsdp_of_a_transformer",
        ),
        (
            'partial(transformer_auto_wrap_policy, transformer_layer_cls={"BertLayer", "BertIntermediate"})',
            'wrap_layers={"BertLayer", "BertIntermediate"}',
            D + "test_fsdp_of_a_transformer",
        ),
        (
            "model = FSDP(model, **fsdp_config)",
            'model = FSDPWrapper(model, wrap_layers={"BertLayer", "BertIntermediate"}, mixed_precision=precision)',
            D + "test_fsdp_of_a_transformer",
        ),
        (
            "with FSDP.state_dict_type(model, FULL_STATE_DICT): torch.save(model.state_dict(), checkpoint_path)",
            "save_checkpoint(model, optimizer, 1, checkpoint_path)",
            D + "test_fsdp_of_a_transformer",
        ),
        (
            "with FSDP.state_dict_type(model, FULL_STATE_DICT): model.load_state_dict(checkpoint)",
            "load_checkpoint(model, optimizer, checkpoint_path)",
            D + "test_fsdp_of_a_transformer",
        ),
        ("activation checkpointing", "--grad_ckpt", D + "test_several_nodes_with_torchrun"),
        ("torch.distributed.barrier()", "barrier()", D + "test_the_complete_ddp_example"),
        ("NCCL_DEBUG=INFO", "", OF_NCCL),
    ],
    "Parallel strategies and their mathematics": [
        (
            "torchrun --nproc_per_node=4 train.py",
            "torchrun --nproc_per_node=2 SCRIPT",
            D + "test_the_complete_ddp_example",
        ),
        ("dist.init_process_group(backend='nccl')", "setup_distributed()", D + "test_the_complete_ddp_example"),
        (
            "local_rank = int(os.environ['LOCAL_RANK']); torch.cuda.set_device(local_rank)",
            "setup_distributed()",
            "tests/distributed/test_process_group.py::test_each_local_rank_has_its_gpu",
        ),
        (
            "model = DDP(model, device_ids=[local_rank])",
            "model = distribute_model(MyModel().to(device))",
            D + "test_the_complete_ddp_example",
        ),
        (
            "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)",
            "",
            D + "test_the_complete_ddp_example",
        ),
        (
            "DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset))",
            "",
            D + "test_the_complete_ddp_example",
        ),
        ("train_loader.sampler.set_epoch(epoch)", "", D + "test_the_complete_ddp_example"),
        (
            'if local_rank == 0: print(f"Epoch {epoch}, Loss: {loss.item():.4f}")',
            'print_main(f"Epoch {epoch}, Loss: {loss.item():.4f}")',
            D + "test_the_complete_ddp_example",
        ),
        (
            "DeepSpeedEngine(model=model, model_parameters=model.parameters(), config=ds_config)",
            "torchrun --nproc_per_node=4 train.py --strategy deepspeed --zero_stage 2 --ds_config FILE",
            ZERO_CONFIG,
        ),
        ("model_engine.backward(loss); model_engine.step()", "the loop of train.py, unchanged", ZERO),
        (
            '"gradient_accumulation_steps": 4',
            "--accum_steps 4",
            "tests/test_same_training.py::test_accumulation_communicates_once_per_step",
        ),
        ('"fp16": {"enabled": True}', "--amp fp16", NEEDS_GPU),
    ],
    "DDP for a train.py": [
        ("bash train_torchrun.sh", "", "tests/test_launch_scripts.py::test_without_arguments_the_demo_runs"),
        (
            "torchrun --nproc_per_node=2 --standalone train.py --distributed",
            "",
            T + "test_training_ends_with_the_class_table_and_the_summary",
        ),
        (
            "torchrun --nproc_per_node=4 --standalone train.py --distributed",
            "",
            T + "test_training_ends_with_the_class_table_and_the_summary",
        ),
        ("bash train_ddp.sh", "", "tests/test_launch_scripts.py::test_without_arguments_the_demo_runs"),
        (
            "python -m torch.distributed.launch --nproc_per_node=2 --use_env train.py --distributed",
            "",
            D + "test_one_node",
        ),
        ("python train.py --layers 50 --model_type res50_ASPP_lorm", "", D + "test_one_process"),
        ("python train.py --distributed --local_rank=0", "", T + "test_a_dry_run_writes_nothing"),
        (
            "--distributed, --world_size, --local_rank, --dist_url, --batchsize, --workers, --lr",
            "",
            "tests/test_options.py::test_legacy_commands_are_accepted",
        ),
        (
            "the learning rate follows the number of GPUs",
            "--lr_scale linear",
            "tests/test_same_training.py::test_ranks_train_the_model_of_one_process",
        ),
        (
            "NCCL_TIMEOUT",
            "--dist_timeout SECONDS",
            "tests/distributed/test_process_group.py::test_missing_processes_are_an_error_that_says_where",
        ),
        (
            "--master_port",
            "",
            "tests/distributed/test_process_group.py::test_a_port_in_use_is_named_with_a_remedy",
        ),
        (
            "bash train_torchrun.sh --master_port 12345",
            "",
            "tests/test_launch_scripts.py::test_with_flags_of_torchrun_alone_the_demo_runs",
        ),
        (
            "Debug DDP Training, in .vscode/launch.json",
            "",
            "tests/test_vscode.py::test_a_breakpoint_is_hit_on_every_rank",
        ),
        ("tensorboard --logdir=./log", "", T + "test_tensorboard_serves_the_log_folder"),
        ("pip install gpustat", "a dependency of this project", D + "test_gpustat_is_installed"),
        ("gpustat -i 1", "", NEEDS_GPU),
        ("nvidia-smi", "", NEEDS_GPU),
        ("watch -n 1 nvidia-smi", "", NEEDS_GPU),
        ("export NCCL_DEBUG=INFO", "", OF_NCCL),
        ("export CUDA_LAUNCH_BLOCKING=1", "", "a variable of CUDA, which needs a GPU"),
        ("iftop -i INTERFACE", "", "a program of the system, which needs root and real traffic between machines"),
    ],
    "DDP by a YAML file": [
        (
            "torchrun --nproc_per_node=4 train.py --config configs/ddp_example.yaml --task train",
            "",
            T + "test_training_ends_with_the_class_table_and_the_summary",
        ),
        (
            "torchrun --nproc_per_node=4 train.py --config configs/ddp_example.yaml --task test",
            "",
            T + "test_testing_gives_the_same_table_on_one_process_and_on_two",
        ),
        (
            "torchrun --nproc_per_node=4 train.py --config configs/ddp_example.yaml --task predict",
            "",
            T + "test_prediction_is_split_across_ranks_and_complete",
        ),
        (
            'torchrun --nproc_per_node=4 --nnodes=2 --node_rank=0 --master_addr="192.168.1.100" --master_port=29500 '
            "train.py --config configs/ddp_example.yaml --task train",
            "",
            D + "test_several_nodes_with_torchrun",
        ),
        (
            "python -m torch.distributed.launch --nproc_per_node=4 train.py --config configs/ddp_example.yaml "
            "--task train",
            "",
            D + "test_the_old_launcher",
        ),
        (
            "python -m torch.distributed.launch --nproc_per_node=4 --nnodes=2 --node_rank=0 "
            '--master_addr="192.168.1.100" --master_port=29500 train.py --config configs/ddp_example.yaml --task train',
            "",
            D + "test_the_old_launcher",
        ),
        ("./run_ddp.sh", "./train_ddp.sh --config configs/ddp_example.yaml", D + "test_one_node"),
        ('ddp: {enabled: true, log_level: "INFO"}', "", "tests/test_config_file.py::test_the_section_of_the_document"),
        (
            "batch_size, grad_accumulation_steps, num_workers, pin_memory",
            "batchsize, accum_steps, workers, no_pin_memory; or these names",
            "tests/test_config_file.py::test_every_name_sets_the_option_it_means",
        ),
        (
            "pretrained weights, resuming, FP16 and BF16",
            "model_path, resume, amp; or pretrained, resume_from, mixed_precision, fp16, bf16",
            "tests/test_config_file.py::test_every_name_sets_the_option_it_means",
        ),
        (
            "only the main process logs",
            "",
            "tests/distributed/test_rank_logging.py::test_only_rank_0_is_on_the_console",
        ),
        ('python -c "import torch; print(torch.__version__)"', "", D + "test_imports"),
        ("export CUDA_VISIBLE_DEVICES=0,1,2,3", "", "tests/test_launch_scripts.py::test_one_process_per_visible_gpu"),
        ("export NCCL_DEBUG=INFO", "", OF_NCCL),
        ("nvidia-smi", "", NEEDS_GPU),
        (
            "DeepSpeed, instead of DDP",
            "torchrun --nproc_per_node=4 train.py --config configs/ddp_example.yaml --strategy deepspeed",
            ZERO,
        ),
    ],
}


def page() -> str:
    """Return the text of docs/documents.md."""
    parts = [HEAD]
    for title, rows in DOCUMENTS.items():
        parts.append(f"\n## {title}\n\n| Line | Ours | Test |\n|---|---|---|\n")
        for line, ours, test in rows:
            parts.append(f"| {_code(line)} | {_code(ours) if ours else 'the same'} | {_test(test)} |\n")
    return "".join(parts)


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def _test(test: str) -> str:
    return f"`{test}`" if test.startswith("tests/") else f"none: {test}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
