"""The flags are an interface: their names, aliases and defaults are frozen here, and so is what wins over what."""

from __future__ import annotations

import argparse
import math
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import retrofit.distributed as rd
import train
from retrofit.distributed.checkpoint.saved_options import without_place
from retrofit.distributed.strategies.flags import add_all_flags
from segmentation.datasets import DATASETS, default_num_classes
from segmentation.options import build_parser, options_to_save, parse_options

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
MODEL_TYPES = ("deeplabv3p", "deeplabv2", "deeplabv3p_lorm", "res50_ASPP_lorm", "swin_mlp")

# dest: (option strings, default, choices)
FLAGS: dict[str, tuple[tuple[str, ...], Any, Any]] = {
    "help": (("-h", "--help"), argparse.SUPPRESS, None),
    "task": (("--task",), "train", ("train", "test", "predict")),
    "config": (("--config",), None, None),
    "model_type": (("--model_type",), "deeplabv3p", MODEL_TYPES),
    "layers": (("--layers",), 50, (18, 34, 50, 101, 152)),
    "numclasses": (("--numclasses",), 0, None),
    "model_path": (("--model_path",), "none", None),
    "dataset": (
        ("--dataset",),
        "synthetic",
        ("synthetic", "synthetic_scribble", "folder", "voc", "voc_scribble", "camvid"),
    ),
    "dataset_path": (("--dataset_path",), "dataset", None),
    "crop_size": (("--crop_size",), 0, None),
    "workers": (("--workers",), 4, None),
    "batchsize": (("--batchsize",), 16, None),
    "no_pin_memory": (("--no_pin_memory",), False, None),
    "predict_path": (("--predict_path",), None, None),
    "output": (("--output",), None, None),
    "epochs": (("--epochs",), 20, None),
    "lr": (("--lr",), 1e-3, None),
    "warmup_epoch": (("--warmup_epoch", "--warmup"), 1.0, None),
    "sched": (("--sched",), "cosine", ("cosine", "poly")),
    "wdecay": (("--wdecay",), 5e-4, None),
    "momentum": (("--momentum",), 0.9, None),
    "l_segs": (("--l_segs", "--l_seg"), 1.0, None),
    "l_lorm": (("--l_lorm",), 0.1, None),
    "label_smooth": (("--label_smooth",), 0.0, None),
    "clip_grad": (("--clip_grad",), 0.0, None),
    "ema_decay": (("--ema_decay",), 0.0, None),
    "amp": (("--amp",), "off", ("off", "fp16", "bf16")),
    "channels_last": (("--channels_last",), False, None),
    "compile": (("--compile",), False, None),
    "seed": (("--seed",), 1000, None),
    "deterministic": (("--deterministic",), False, None),
    "logdir": (("--logdir",), "./log", None),
    "chk_interval": (("--chk_interval",), 1, None),
    "chk_steps": (("--chk_steps",), 0, None),
    "val_epoch": (("--val_epoch",), 0, None),
    "resume": (("--resume",), "", None),
    "distributed": (("--distributed",), False, None),
    "local_rank": (("--local_rank", "--local-rank"), -1, None),
    "world_size": (("--world_size",), 1, None),
    "dist_url": (("--dist_url",), "env://", None),
    "dist_backend": (("--dist_backend",), "auto", ("auto", "nccl", "gloo")),
    "dist_timeout": (("--dist_timeout",), 1800.0, None),
    "batch": (("--batch",), "per_gpu", ("per_gpu", "global")),
    "lr_scale": (("--lr_scale",), "linear", ("linear", "sqrt", "none")),
    "find_unused_parameters": (("--find_unused_parameters",), False, None),
    "comm_hook": (("--comm_hook",), "none", ("none", "fp16", "bf16", "powersgd")),
    "bucket_cap_mb": (("--bucket_cap_mb",), 25.0, None),
    "gradient_as_bucket_view": (("--gradient_as_bucket_view",), False, None),
    "static_graph": (("--static_graph",), False, None),
    "strategy": (("--strategy",), "auto", ("auto", "single", "dp", "ddp", "fsdp", "deepspeed")),
    "sharding": (("--sharding",), "FULL_SHARD", ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD")),
    "shard_size": (("--shard_size",), 0, None),
    "wrap_layers": (("--wrap_layers",), "", None),
    "min_num_params": (("--min_num_params",), 1e6, None),
    "param_dtype": (("--param_dtype",), "fp32", ("fp32", "auto", "bf16", "fp16")),
    "reduce_dtype": (("--reduce_dtype",), "fp32", ("fp32", "auto", "bf16", "fp16")),
    "buffer_dtype": (("--buffer_dtype",), "fp32", ("fp32", "auto", "bf16", "fp16")),
    "cpu_offload": (("--cpu_offload",), False, None),
    "grad_ckpt": (("--grad_ckpt",), False, None),
    "zero_stage": (("--zero_stage",), 2, (0, 1, 2, 3)),
    "ds_config": (("--ds_config",), "", None),
    "ckpt": (("--ckpt",), "full", ("full", "sharded")),
    "async_save": (("--async_save",), False, None),
    "log_level": (("--log_level",), "INFO", ("DEBUG", "INFO", "WARNING", "ERROR")),
    "accum_steps": (("--accum_steps",), 1, None),
    "sync_bn": (("--sync_bn",), False, None),
    "dry_run": (("--dry_run",), False, None),
}


def parser_of_train(monkeypatch: pytest.MonkeyPatch) -> argparse.ArgumentParser:
    """Return the parser that train.py builds, caught where it hands it over."""
    caught: list[argparse.ArgumentParser] = []
    with monkeypatch.context() as patch:
        patch.setattr(train, "parse_options", lambda parser, *_: caught.append(parser))
        train.get_arguments([])
    return caught[0]


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def continued(argv: list[str], saved: dict[str, Any]) -> argparse.Namespace:
    """Return the options of a run that continues a checkpoint with the options `saved`."""
    args = train.get_arguments(argv)
    train.continue_options(train.get_parser(), args, saved)
    return args


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Return the last line that train.py prints when it refuses `argv`; its exit status must be 2."""
    with pytest.raises(SystemExit) as exit_info:
        train.get_arguments(list(argv))
    assert exit_info.value.code == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_flags_aliases_and_defaults_are_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    actions = parser_of_train(monkeypatch)._actions
    found = {
        action.dest: (tuple(action.option_strings), action.default, action.choices and tuple(action.choices))
        for action in actions
    }
    assert found == FLAGS


def test_help_names_every_flag_with_its_default_or_off_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as exit_info:
        train.get_arguments(["--help"])
    assert exit_info.value.code == 0
    text = capsys.readouterr().out
    for action in parser_of_train(monkeypatch)._actions[1:]:
        for name in action.option_strings:
            assert name in text
        is_switch = action.nargs == 0  # off until it is given
        assert action.help and (is_switch or re.search(r"default|off", action.help)), f"{action.dest}: {action.help}"


@pytest.mark.parametrize(
    "command",
    [
        "train.py --layers 50 --model_type res50_ASPP_lorm",
        "train.py --distributed",
        "train.py --distributed --local_rank=0",
        "train.py --distributed --local_rank 0 --layers 50 --model_type res50_ASPP_lorm",
        "train.py --local-rank=0 --distributed",
        "train.py --distributed --batchsize 8 --lr 1e-3 --workers 8 --world_size 2 --dist_url env://",
        "train.py --layers 101 --l_seg 1 --l_lorm 0 --warmup 2 --label_smooth 0.1 --sched poly --wdecay 5e-4 "
        "--momentum 0.9 --numclasses 21 --dataset_path VOC2012 --epochs 50 --chk_interval 5 --val_epoch 10 --seed 1",
    ],
)
def test_legacy_commands_are_accepted(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    args = train.get_arguments()  # from sys.argv, as a real start does
    assert args.distributed is ("--distributed" in command)
    assert args.local_rank == (0 if "rank" in command else -1)
    assert args.layers == (101 if "101" in command else 50)


def test_legacy_spellings_set_the_same_option() -> None:
    args = train.get_arguments(["--warmup", "3", "--l_seg", "0.5", "--local-rank", "0"])
    assert (args.warmup_epoch, args.l_segs, args.local_rank) == (3.0, 0.5, 0)


@pytest.mark.parametrize("argv", [[], ["--config", "demo"]])
@pytest.mark.parametrize(("has_gpu", "layers", "amp"), [(False, 18, "off"), (True, 50, "bf16")])
def test_no_argument_is_the_demo_sized_to_the_machine(
    monkeypatch: pytest.MonkeyPatch, argv: list[str], has_gpu: bool, layers: int, amp: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    args = train.get_arguments(argv)
    assert (args.layers, args.amp, args.dataset, args.task) == (layers, amp, "synthetic", "train")


def test_any_argument_switches_the_demo_off() -> None:
    assert train.get_arguments(["--seed", "1"]).layers == 50


def test_command_line_wins_over_yaml_and_yaml_over_checkpoint(tmp_path: Path) -> None:
    config = write(tmp_path / "c.yaml", "epochs: 7\nlr: 1e-2\n")  # YAML 1.1 reads 1e-2 as a string
    saved = {"epochs": 5, "lr": 0.5, "momentum": 0.25, "sync_bn": True}
    args = continued(["--config", config, "--epochs", "9"], saved)
    assert (args.epochs, args.lr, args.momentum, args.sync_bn) == (9, 0.01, 0.25, True)
    assert args.wdecay == 5e-4


def test_a_command_line_value_equal_to_the_default_still_wins(tmp_path: Path) -> None:
    config = write(tmp_path / "c.yaml", "batchsize: 7\n")
    assert train.get_arguments(["--config", config, "--batchsize", "16"]).batchsize == 16


def test_yaml_takes_aliases_switches_and_any_string(tmp_path: Path) -> None:
    text = (
        "warmup: 2\nl_seg: 3\nsync_bn: true\nchannels_last: false\nlogdir: 5\namp: off\nlayers: '18'\nlocal-rank: 0\n"
    )
    args = train.get_arguments(["--config", write(tmp_path / "c.yaml", text)])
    assert (args.warmup_epoch, args.l_segs, args.sync_bn, args.channels_last) == (2.0, 3.0, True, False)
    assert (args.logdir, args.amp, args.layers, args.local_rank) == ("5", "off", 18, 0)


def test_options_saved_in_a_checkpoint() -> None:
    args = train.get_arguments(["--epochs", "3", "--resume", "auto", "--logdir", "elsewhere"])
    saved = options_to_save(args)
    assert saved["epochs"] == 3 and saved["numclasses"] == 0
    assert not {"config", "task", "resume", "logdir", "dry_run", "predict_path", "output"} & set(saved)
    assert continued(["--lr", "0.5"], saved).epochs == 3


def test_options_of_another_version_in_a_checkpoint_are_ignored() -> None:
    args = continued(["--lr", "0.5"], {"gone": 1, "epochs": 4})
    assert args.epochs == 4 and not hasattr(args, "gone")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--warm", "1"], "unrecognized arguments: --warm 1; did you mean --warmup?"),
        (["--batch_size=4", "-x", "-1"], "unrecognized arguments: --batch_size=4 -x -1; did you mean --batchsize?"),
        (["--epoch", "3", "--dist-timeout", "9"], "did you mean --epochs and --dist_timeout?"),
        (["--no_such_flag"], "unrecognized arguments: --no_such_flag; see --help for the options"),
        (["stray"], "unrecognized arguments: stray; see --help for the options"),
        (["--layers", "20"], "invalid choice: 20"),
        (["--batchsize", "0"], "--batchsize must be a number of at least 1, got 0"),
        (["--epochs", "0"], "--epochs must be a number of at least 1, got 0"),
        (["--workers", "-1"], "--workers must be a number of at least 0, got -1"),
        (["--lr", "nan"], "--lr must be a number of at least 0, got nan"),
        (["--lr", "inf"], "--lr must be a number of at least 0, got inf"),
        (["--l_segs", "-1"], "--l_segs must be a number of at least 0, got -1.0"),
        (["--label_smooth", "1"], "--label_smooth must be in 0..1 (1 excluded), got 1.0"),
        (["--momentum", "nan"], "--momentum must be in 0..1 (1 excluded), got nan"),
        (["--config", "nowhere.yaml"], "no configuration file at nowhere.yaml; see configs/ for examples"),
    ],
)
def test_wrong_flags_are_refused(capsys: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    assert message in refusal(capsys, *argv)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("warmup_epochs: 1\n", "unknown key 'warmup_epochs'; did you mean warmup_epoch?"),
        ("qqqq: 1\n", "unknown key 'qqqq'; see --help for the options"),
        ("config: other.yaml\n", "unknown key 'config'"),
        ("3: 1\n", "unknown key 3"),
        ("epochs: many\n", "epochs must be a whole number, got 'many'"),
        ("epochs: 2.5\n", "epochs must be a whole number, got 2.5"),
        ("workers: true\n", "workers must be a whole number, got True"),
        ("lr: fast\n", "lr must be a number, got 'fast'"),
        ("layers: 20\n", "layers must be one of 18, 34, 50, 101, 152, got 20"),
        ("sched: true\n", "sched must be one of cosine, poly, got True"),
        ("sync_bn: 1\n", "sync_bn is a switch, got 1; use true or false"),
        ("logdir:\n", "logdir needs one value, got None"),
        ("dataset_path: [a, b]\n", "dataset_path needs one value, got ['a', 'b']"),
        ("epochs: 0\n", "--epochs must be a number of at least 1, got 0"),
        ("- epochs\n", "must hold `option: value` lines, got ['epochs']"),
        ("", "must hold `option: value` lines, got None"),
        ("lr: [1\n", "see configs/ for examples"),
    ],
)
def test_wrong_yaml_is_refused_with_its_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, message: str
) -> None:
    config = write(tmp_path / "wrong.yaml", text)
    found = refusal(capsys, "--config", config)
    assert message in found
    assert config in found or message.startswith(("--epochs", "see"))


def test_yaml_that_is_not_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "binary.yaml"
    config.write_bytes(b"epochs: \xff\xfe\n")
    assert f"{config} is not valid YAML in UTF-8" in refusal(capsys, "--config", str(config))


@pytest.mark.parametrize("config", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_file_in_configs_is_accepted(config: Path) -> None:
    args = train.get_arguments(["--config", str(config)])
    assert args.dataset in DATASETS and default_num_classes(args.dataset) > 1
    assert args.warmup_epoch < args.epochs and args.val_epoch < args.epochs
    assert math.isfinite(args.lr) and args.lr > 0
    assert config.read_text(encoding="utf-8").startswith("# "), "say what it is for"


@pytest.mark.parametrize("name", ["demo_cpu.yaml", "demo_gpu.yaml"])
def test_demo_works_without_the_flags_of_several_gpus(name: str) -> None:
    """The script before the retrofit takes them too."""
    assert parse_options(build_parser(), ["--config", str(CONFIGS / name)]).dataset == "synthetic"


def test_parsers_do_not_share_state(tmp_path: Path) -> None:
    config = write(tmp_path / "c.yaml", "epochs: 7\n")
    assert train.get_arguments(["--config", config]).epochs == 7
    assert train.get_arguments(["--seed", "1"]).epochs == 20
    assert add_all_flags(build_parser(), {}).get_default("epochs") == 20


def test_the_options_of_a_checkpoint_decide_how_the_model_is_wrapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options of the runtime too, which are asked for far from the parsed arguments."""
    seen = {}

    def record(args: argparse.Namespace, checkpoint: dict[str, Any]) -> int:
        names = ("grad_ckpt", "wrap_layers", "bucket_cap_mb", "strategy")
        seen.update({name: (rd.options.get_option(name), getattr(args, name)) for name in names})
        return 0

    saved = {"grad_ckpt": True, "wrap_layers": "Bottleneck", "bucket_cap_mb": 3.0, "strategy": "fsdp"}
    monkeypatch.setattr(train, "find_checkpoint", lambda args: {"options": without_place(saved), "path": tmp_path})
    monkeypatch.setattr(train, "train", record)
    assert train.main(["--resume", "auto", "--bucket_cap_mb", "7"]) == 0
    assert seen == {
        "grad_ckpt": (True, True),
        "wrap_layers": ("Bottleneck", "Bottleneck"),
        "bucket_cap_mb": (7.0, 7.0),
        "strategy": ("auto", "auto"),
    }


@pytest.mark.parametrize("text", ["-1", str(2**32), str(2**64)])
def test_a_seed_that_no_generator_takes_is_refused_in_one_line(text, capsys):
    with pytest.raises(SystemExit) as ended:
        parse_options(build_parser(), [f"--seed={text}"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"--seed must be from 0 to {2**32 - 1}, got {text}")


def test_every_number_of_the_project_is_checked(capsys):
    """Driven by the parser: also one that is added later."""
    numbers = [action for action in build_parser()._actions if action.type in (int, float) and not action.choices]
    assert len(numbers) >= 15
    for action in numbers:
        for text in ("nan", "inf", "-inf", "-7", str(10**40)):
            with pytest.raises(SystemExit) as ended:
                parse_options(build_parser(), [f"{action.option_strings[0]}={text}"])
            assert ended.value.code == 2, (action.dest, text)
            assert action.dest in capsys.readouterr().err.splitlines()[-1]
