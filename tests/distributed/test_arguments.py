"""The runtime flags and their environment twins."""

from __future__ import annotations

import argparse
import os

import pytest

from retrofit.distributed.process.options import FLAGS, read_twin
from retrofit.distributed.strategies.flags import RUNTIME_FLAGS, add_all_flags

# Frozen: scripts and launchers in the wild use these names and defaults.
DEFAULTS = {
    "distributed": False,
    "local_rank": -1,
    "world_size": 1,
    "dist_url": "env://",
    "dist_backend": "auto",
    "dist_timeout": 1800.0,
    "batch": "per_gpu",
    "lr_scale": "linear",
    "find_unused_parameters": False,
    "comm_hook": "none",
    "bucket_cap_mb": 25.0,
    "gradient_as_bucket_view": False,
    "static_graph": False,
    "strategy": "auto",
    "sharding": "FULL_SHARD",
    "shard_size": 0,
    "wrap_layers": "",
    "min_num_params": 1e6,
    "param_dtype": "fp32",
    "reduce_dtype": "fp32",
    "buffer_dtype": "fp32",
    "cpu_offload": False,
    "grad_ckpt": False,
    "zero_stage": 2,
    "ds_config": "",
    "ckpt": "full",
    "async_save": False,
    "log_level": "INFO",
}
OTHER_VALUES = {
    "distributed": ("1", True),
    "local_rank": ("2", 2),
    "world_size": ("4", 4),
    "dist_url": ("tcp://host:1234", "tcp://host:1234"),
    "dist_backend": ("gloo", "gloo"),
    "dist_timeout": ("12.5", 12.5),
    "batch": ("global", "global"),
    "lr_scale": ("sqrt", "sqrt"),
    "find_unused_parameters": ("1", True),
    "comm_hook": ("powersgd", "powersgd"),
    "bucket_cap_mb": ("0.5", 0.5),
    "gradient_as_bucket_view": ("1", True),
    "static_graph": ("1", True),
    "strategy": ("fsdp", "fsdp"),
    "sharding": ("HYBRID_SHARD", "HYBRID_SHARD"),
    "shard_size": ("2", 2),
    "wrap_layers": ("BertLayer,Bottleneck", "BertLayer,Bottleneck"),
    "min_num_params": ("2e5", 2e5),
    "param_dtype": ("bf16", "bf16"),
    "reduce_dtype": ("auto", "auto"),
    "buffer_dtype": ("fp16", "fp16"),
    "cpu_offload": ("1", True),
    "grad_ckpt": ("1", True),
    "zero_stage": ("3", 3),
    "ds_config": ("zero.json", "zero.json"),
    "ckpt": ("sharded", "sharded"),
    "async_save": ("1", True),
    "log_level": ("DEBUG", "DEBUG"),
}


def twins(environ=None):
    return {name: read_twin(flag, os.environ if environ is None else environ) for name, flag in FLAGS.items()}


def parse(*arguments, environ=None):
    parser = add_all_flags(argparse.ArgumentParser(allow_abbrev=False), environ or {})
    return vars(parser.parse_args(arguments))


def test_the_set_of_flags_is_frozen():
    assert parse() == DEFAULTS
    assert twins({}) == DEFAULTS
    spellings = {
        option
        for action in add_all_flags(argparse.ArgumentParser(add_help=False), {})._actions
        for option in action.option_strings
    }
    assert spellings == {f"--{name}" for name in DEFAULTS} | {"--local-rank"}


@pytest.mark.parametrize("name", DEFAULTS)
def test_every_flag_has_an_environment_variable(name):
    text, value = OTHER_VALUES[name]
    environ = {f"RETROFIT_{name.upper()}": text}
    assert parse(environ=environ) == {**DEFAULTS, name: value}
    assert twins(environ) == {**DEFAULTS, name: value}


def test_options_are_read_from_the_process_environment(monkeypatch):
    monkeypatch.setenv("RETROFIT_BATCH", "global")
    assert twins()["batch"] == "global"
    assert add_all_flags(argparse.ArgumentParser()).parse_args([]).batch == "global"


def test_the_flag_wins_over_its_environment_variable():
    environ = {"RETROFIT_BATCH": "global", "RETROFIT_DIST_TIMEOUT": "5", "RETROFIT_LOCAL_RANK": "1"}
    options = parse("--batch", "per_gpu", "--dist_timeout", "7", "--local_rank", "0", environ=environ)
    assert (options["batch"], options["dist_timeout"], options["local_rank"]) == ("per_gpu", 7.0, 0)


@pytest.mark.parametrize("text", ["1", "true", "True", "TRUE"])
def test_switch_on(text):
    assert twins({"RETROFIT_DISTRIBUTED": text})["distributed"] is True


@pytest.mark.parametrize("text", ["0", "false", "False", ""])
def test_switch_off(text):
    assert twins({"RETROFIT_DISTRIBUTED": text})["distributed"] is False


@pytest.mark.parametrize(
    ("name", "text", "remedy"),
    [
        ("BATCH", "total", "per_gpu, global"),
        ("LR_SCALE", "cubic", "linear, sqrt, none"),
        ("DIST_BACKEND", "mpi", "auto, nccl, gloo"),
        ("DIST_TIMEOUT", "soon", "float from 0.001 to 1e.07"),
        ("LOCAL_RANK", "1.5", "int from -1 to 1.04858e.06"),
        ("DISTRIBUTED", "yes", "0, 1, false, true"),
    ],
)
def test_a_wrong_environment_variable_is_reported_with_the_allowed_values(name, text, remedy):
    for read in (twins, lambda environ: parse(environ=environ)):
        with pytest.raises(ValueError, match=f"RETROFIT_{name}='{text}' is not valid; use one of: {remedy}, or unset"):
            read({f"RETROFIT_{name}": text})


@pytest.mark.parametrize("spelling", ["--local_rank", "--local-rank"])
def test_both_spellings_of_local_rank(spelling):
    assert parse(f"{spelling}=3")["local_rank"] == 3
    assert parse(spelling, "3")["local_rank"] == 3


@pytest.mark.parametrize("arguments", [("--batch", "total"), ("--dist_backend", "mpi"), ("--lr_scale", "cubic")])
def test_a_bad_flag_is_a_usage_error(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(*arguments)
    assert caught.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_help_can_be_printed_and_says_every_flag(capsys):
    with pytest.raises(SystemExit):
        parse("--help")
    text = capsys.readouterr().out
    assert all(f"--{flag.name}" in text for flag in RUNTIME_FLAGS)


def test_reading_options_changes_no_environment():
    before = dict(os.environ)
    parse("--distributed")
    assert dict(os.environ) == before


def test_one_rank_per_node_prints_the_parser_error(capsys):
    for rank, shown in (("0", "unrecognized arguments: --no_such_flag"), ("1", "")):
        parser = add_all_flags(argparse.ArgumentParser(), {"LOCAL_RANK": rank})
        with pytest.raises(SystemExit) as ended:
            parser.parse_args(["--no_such_flag"])
        assert ended.value.code == 2
        error = capsys.readouterr().err
        assert shown in error and bool(error) == bool(shown)


NUMBERS = [flag for flag in RUNTIME_FLAGS if flag.type in (int, float) and flag.choices is None]
NO_NUMBERS = ["nan", "inf", "-inf", "-7", "1e400", str(10**40)]


@pytest.mark.parametrize("flag", NUMBERS, ids=lambda flag: flag.name)
def test_a_flag_that_is_not_a_number_is_refused_in_one_line(flag, capsys):
    """Every flag that takes a number: also one that is added later."""
    assert flag.bounds is not None, "say which numbers it takes"
    for text in NO_NUMBERS:
        with pytest.raises(SystemExit) as ended:
            parse(f"--{flag.name}={text}")
        assert ended.value.code == 2
        assert f"argument --{flag.name}" in capsys.readouterr().err.splitlines()[-1]
        with pytest.raises(ValueError, match=f"{flag.environment_twin}='{text}' is not valid; use one of: .* from "):
            twins({flag.environment_twin: text})
    for bound in flag.bounds:
        assert parse(f"--{flag.name}={flag.type(bound)}")[flag.name] == bound
