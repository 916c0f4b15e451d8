"""The commands on the pages, and what is done with each: run in a session, run by a test, or not run, and why."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs"))

import make_pages  # noqa: E402

# Written by programs, each with a test that compares it with what the program writes, or a report of one long run.
GENERATED = {
    "api.md", "rules.md", "bugs.md", "corpus.md", "documents.md", "memory.md", "scaling.md", "comm_hooks.md",
    "consistency.md", "architecture.md", "lesson.md", "lesson.zh-CN.md", "refusals.md",
}  # fmt: skip
PROGRAM = (
    r"(?:bash|python|torchrun|retrofit|srun|sbatch|pip|tensorboard|gpustat|watch|nvidia-smi|docker|apt|diff|source)"
)
COMMAND = re.compile(rf"(?:[A-Z_]+=\S+ )*{PROGRAM} \S.*")


def written_pages() -> list[Path]:
    """Return the pages that are written by hand."""
    return [page for page in make_pages.pages() if page.name not in GENERATED]


def commands_on(text: str) -> Iterator[str]:
    """Yield the commands of a page outside its sessions: in shell blocks, and as code in tables and sentences."""
    text = make_pages.BLOCK.sub("", text)
    for block in re.findall(r"^```bash\n(.*?)^```$", text, re.M | re.S):
        for line in block.replace("\\\n", "").splitlines():
            command = " ".join(line.split("  #")[0].split(" # ")[0].split())
            if command and not command.startswith(("#", "cd ")):
                yield command
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    for code in re.findall(r"`([^`\n]+)`", prose):
        if COMMAND.fullmatch(code) and "..." not in code.replace(" ...", ""):
            yield code.removesuffix(" ...")


# Run in this order in one copy of docs/demo; `(command, status)`.
IN_DEMO = (
    ("retrofit check train.py", 1),
    ("retrofit check train.py --format json", 1),
    ("python -m retrofit check train.py", 1),
    ("python -m retrofit rules RF103", 0),
    ("python -m retrofit convert train.py", 0),
    ("retrofit convert train.py --write", 0),
    ("retrofit convert --update-runtime", 0),
    ("python -m retrofit convert train.py --undo", 0),
    ("python -m retrofit convert train.py --write", 0),
)
# What these start is run with small sizes: the words that are added.
SMALL = [
    *("--layers", "18", "--crop_size", "32", "--batchsize", "4", "--epochs", "1", "--warmup_epoch", "0"),
    *("--workers", "0", "--dataset", "synthetic", "--dry_run"),
]
STARTED = (
    "python train.py",
    "bash train_torchrun.sh --strategy ddp --comm_hook bf16",
    "bash train_torchrun.sh --strategy fsdp --model_type swin_mlp --wrap_layers SwinTransformerBlock",
)
# Run by another test.
TESTED = {
    "retrofit verify train.py --fix -- ARGS": "tests/test_repair.py::test_a_seeded_bug_is_repaired",
    "retrofit verify train.py --json": "tests/test_automation.py::test_the_steps_of_the_action",
    "retrofit verify train.py --json -- --epochs 2": "tests/test_automation.py::test_the_steps_of_the_action",
    "RETROFIT_STRATEGY=fsdp bash train_torchrun.sh ARGUMENTS":
        "tests/convert/test_sharded_scripts.py::test_a_converted_script_trains_saves_and_resumes_as_with_ddp",
    "retrofit convert train.py --with fsdp --write":
        "tests/convert/test_sharded_scripts.py::test_a_converted_script_trains_saves_and_resumes_as_with_ddp",
    "retrofit convert train.py --with fsdp --update-runtime":
        "tests/convert/test_runtime_file.py::test_a_feature_stays_in_the_file",
    "retrofit convert train.py --prove -- ARGUMENTS": "tests/convert/test_prove.py::test_what_is_proven_is_written",
    "retrofit convert train.py --prove -- --epochs 2": "tests/convert/test_prove.py::test_what_is_proven_is_written",
    "python train.py --distributed": "tests/test_tasks.py::test_a_dry_run_writes_nothing",
    "torchrun --nproc_per_node=2 train.py --config configs/ddp_example.yaml --task train":
        "tests/test_tasks.py::test_training_ends_with_the_class_table_and_the_summary",
    "python train.py --distributed --local_rank=0": "tests/test_tasks.py::test_a_dry_run_writes_nothing",
    "torchrun --nproc_per_node=2 --standalone train.py --distributed":
        "tests/test_tasks.py::test_training_ends_with_the_class_table_and_the_summary",
    "pip install /path/to/the/clone":
        "tests/test_installation.py::test_the_commands_of_the_readme_install_from_another_folder",
    "retrofit convert train.ipynb --write":
        "tests/convert/test_notebooks.py::test_a_notebook_is_converted_and_stays",
    "retrofit convert stage1.py stage2.py --write":
        "tests/convert/test_several_conversions.py::test_scripts_that_are_named_together_share_what_they_change",
    "retrofit plan": "tests/test_plan_command.py::test_the_parts_of_a_step_are_measured_and_several_gpus_predicted",
    "retrofit plan train.py --gpus 2,4,8 -- --data ./data":
        "tests/test_plan_command.py::test_the_recommendation_is_run_and_corrects_the_next_plan",
    "retrofit plan train.py --gpus 8,16 --link nvlink --between 100gbe --gpu-memory 80GiB -- --data ./data":
        "tests/test_plan_command.py::test_the_parts_of_a_step_are_measured_and_several_gpus_predicted",
    "retrofit why": "tests/test_why_command.py::test_a_rank_with_a_slow_forward_pass_is_named",
    "RETROFIT_WHY=1 bash train_torchrun.sh":
        "tests/test_why_live.py::test_a_converted_training_writes_a_card_a_page_and_curves",
    "torchrun --nproc_per_node=2 -m retrofit.why train.py --data ./data": (
        "tests/test_why_live.py::test_a_script_without_the_runtime_is_started_by_the_module"
    ),
    "retrofit why train.py -n 2 -- --data ./data":
        "tests/test_why_command.py::test_a_rank_with_a_slow_forward_pass_is_named",
    "retrofit doctor": "tests/test_doctor.py::test_a_whole_examination_as_json",
    "python -m retrofit doctor": "tests/test_doctor.py::test_a_whole_examination_as_json",
    "python -m retrofit doctor --nproc 8 --workers 12":
        "tests/test_doctor.py::test_the_help_has_defaults_and_examples_that_parse",
    "python -m retrofit doctor --nnodes 2":
        "tests/test_doctor.py::test_the_help_has_defaults_and_examples_that_parse",
    "bash train_torchrun.sh": "tests/test_launch_scripts.py::test_without_arguments_the_demo_runs",
    "bash train_torchrun.sh -h": "tests/test_launch_scripts.py::test_help",
    "bash train_torchrun.sh --dataset voc --dataset_path VOC2012":
        "tests/test_launch_scripts.py::test_every_rank_runs_train_py_with_the_arguments_as_given",
    "bash train_torchrun.sh --master_port 12345 --nproc_per_node 2":
        "tests/test_launch_scripts.py::test_flags_of_torchrun_reach_the_launcher_in_any_position",
    "MAX_RESTARTS=3 bash train_torchrun.sh --chk_steps 100": "tests/test_launch_scripts.py::test_restarts",
    "NNODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 bash train_torchrun.sh":
        "tests/test_two_hosts.py::test_a_training_on_two_hosts",
    "NNODES=2 NODE_RANK=1 MASTER_ADDR=10.0.0.1 bash train_torchrun.sh":
        "tests/test_two_hosts.py::test_a_training_on_two_hosts",
    "CUDA_VISIBLE_DEVICES=0,1 bash train_torchrun.sh --batchsize 8":
        "tests/test_launch_scripts.py::test_one_process_per_visible_gpu",
    "bash train_ddp.sh": "tests/test_launch_scripts.py::test_without_arguments_the_demo_runs",
    "python -m torch.distributed.launch --nproc_per_node=2 --use_env train.py --distributed":
        "tests/test_documents.py::test_one_node",
    "srun --ntasks-per-node=4 --gpus-per-task=1 python train.py --distributed":
        "tests/test_tasks.py::test_slurm_tasks_join_one_process_group",
    "sbatch --nodes=2 --gpus-per-node=4 train_slurm.sh": "tests/test_slurm.py::test_a_job_on_two_nodes",
    "bash train_torchrun.sh --resume auto": "tests/test_interrupted_training.py::test_asked_to_stop_in_mid_epoch",
    "python train.py --task test --resume auto":
        "tests/test_tasks.py::test_testing_gives_the_same_table_on_one_process_and_on_two",
    "python train.py --task predict --resume auto --predict_path photos --output masks":
        "tests/test_tasks.py::test_prediction_is_split_across_ranks_and_complete",
    "tensorboard --logdir=./log": "tests/test_tasks.py::test_tensorboard_serves_the_log_folder",
    "gpustat -i 1": "tests/test_documents.py::test_gpustat_is_installed",
    "python docs/make_scale.py": "tests/test_plan_model.py::test_the_page_of_scale_is_current",
    "python docs/make_session.py": "tests/test_pages.py::test_the_recording_is_up_to_date",
    "python -m retrofit convert tests/single_gpu/train.py --root .":
        "tests/convert/test_reference_project.py::test_two_processes_train",
    "python -m retrofit verify train.py --original tests/single_gpu/train.py --converted-args=\"--sync_bn\" -- "
    "--layers 18 --crop_size 32 --batchsize 8 --epochs 2":
        "tests/test_verify_reference_project.py::test_the_reference_project_passes_its_own_proof",
    "python benchmarks/scaling.py --batchsize 32 --rounds 5": "tests/test_benchmarks.py::test_the_speed_up_table",
    "python benchmarks/comm_hooks.py": "tests/test_benchmarks.py::test_the_table_of_communication_hooks",
    "torchrun --nproc_per_node=4 --standalone benchmarks/memory_per_rank.py":
        "tests/test_memory_per_rank.py::test_ddp_and_fsdp_hold_what_the_theory_says",
}  # fmt: skip
LONG = "minutes on an idle machine"
# Not run: why.
NOT_RUN = {
    "pip install '/path/to/the/clone[verify]'": "downloads torch; test_installation reads the extra's list",
    "pip install '/path/to/the/clone[doctor]'": "downloads; test_installation reads the extra's list",
    "pip install git+URL": "needs a network",
    "pip install deepspeed": "needs a network",
    "pip install tensorboard": "needs a network",
    "apt install python3-venv": "changes the machine",
    "docker run --shm-size=8g": "needs docker",
    "source .venv/bin/activate": "the environment that the launch scripts make; test_python_env makes it",
    "bash tests/run.sh": "what runs this test",
    "bash tests/run.sh tests/test_vscode.py": "what runs this test",
    "bash tests/run.sh --all": "what runs this test",
    "watch -n 1 nvidia-smi": "needs a GPU",
    "torchrun --nproc_per_node=2 --standalone train.py --dataset camvid --dataset_path DIR --layers 18 --crop_size 176 "
    "--batchsize 8 --epochs 40 --lr 0.02 --warmup 2 --workers 1": "needs the CamVid data",
    "python benchmarks/loader.py --dataset camvid --dataset_path DIR --crop_size 180": "needs the CamVid data",
    "python benchmarks/loader.py": LONG,
    "python benchmarks/convert_speed.py --sizes 2000 --rounds 3": LONG,
    "python benchmarks/consistency.py": LONG,
    "python benchmarks/harmless_rewrites.py": LONG,
    "torchrun --nnodes=2 --nproc_per_node=8 --node_rank=0 --master_addr=first -m retrofit.plan.link "
    "--output link.json": "needs two machines; the test of the recommendation measures a link on one",
    "python benchmarks/plan_accuracy.py --results plan.jsonl": LONG,
    "python benchmarks/why_overhead.py": LONG,
    "python benchmarks/why_slowdowns.py": LONG,
    "python benchmarks/check_speed.py": LONG,
    "python benchmarks/check_speed.py --sizes 500 1000 2000 5000 10000 --rounds 1": LONG,
    "python benchmarks/check_speed.py --before DIR --sizes 500 --rounds 2 --scripts FILE": "needs two versions",
}  # fmt: skip
# Names of commands, or how something of the reader's is started: nothing to run.
NAMES = {
    "retrofit check", "retrofit convert", "retrofit verify", "retrofit convert -m tools.train", "python -m tools.train",
    "python -m pkg.train", "torchrun --standalone", "python -c pass",
}  # fmt: skip
