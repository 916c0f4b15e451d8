"""YAML files in sections and with other projects' names for our flags, and the one that a run leaves of its options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import train
from retrofit.distributed.job.run_lock import LOCK_FILE
from segmentation.config_file import changed_options, config_text, read_config
from segmentation.options import build_parser, parse_options

EXAMPLE = Path(__file__).resolve().parents[1] / "configs" / "ddp_example.yaml"


def config(folder: Path, text: str) -> str:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def arguments(folder: Path, text: str, *argv: str) -> Any:
    return train.get_arguments(["--config", config(folder, text), *argv])


def refused(folder: Path, text: str) -> str:
    with pytest.raises(ValueError) as error:
        read_config(train.get_parser({}), config(folder, text), train.read_words(train.CONFIG_WORDS))
    return str(error.value)


def test_the_section_of_the_document(tmp_path: Path) -> None:
    args = arguments(tmp_path, 'ddp:\n  enabled: true\n  log_level: "WARNING"\n')
    assert args.distributed is True and args.log_level == "WARNING"


def test_the_command_line_wins_over_a_section(tmp_path: Path) -> None:
    text = "ddp: {log_level: DEBUG}\ntraining: {batch_size: 3}\n"
    args = arguments(tmp_path, text, "--log_level", "ERROR", "--batchsize", "5")
    assert (args.log_level, args.batchsize) == ("ERROR", 5)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("batch_size: 4", "batchsize", 4),
        ("data: {batch_size: 4}", "batchsize", 4),
        ("training: {batch_size: 4}", "batchsize", 4),
        ("grad_accumulation_steps: 3", "accum_steps", 3),
        ("trainer: {gradient_accumulation_steps: 3}", "accum_steps", 3),
        ("dataloader: {num_workers: 0}", "workers", 0),
        ("pin_memory: false", "no_pin_memory", True),
        ("pin_memory: true", "no_pin_memory", False),
        ("model: {pretrained: true}", "model_path", "imagenet"),
        ("model: {pretrained: false}", "model_path", "none"),
        ("model: {pretrained: resnet.pt}", "model_path", "resnet.pt"),
        ("pretrained_weights: resnet.pt", "model_path", "resnet.pt"),
        ("resume_from: log/001", "resume", "log/001"),
        ("checkpoint: {resume: auto}", "resume", "auto"),
        ("mixed_precision: bf16", "amp", "bf16"),
        ("fp16: true", "amp", "fp16"),
        ("bf16: true\nfp16: false", "amp", "bf16"),
        ("mixed_precision: off", "amp", "off"),
        ("optimizer: {learning_rate: 1e-2, weight_decay: 0}", "lr", 0.01),
        ("num_epochs: 7", "epochs", 7),
        ("dataset: {name: voc, path: VOC}", "dataset_path", "VOC"),
        ("dataset: voc", "dataset", "voc"),
        ("output: masks", "output", "masks"),
        ("output: {output: masks}", "output", "masks"),
        ("distributed: true", "distributed", True),
        ("distributed: {backend: gloo, strategy: fsdp}", "strategy", "fsdp"),
        ("ddp:\nseed: 3", "seed", 3),
    ],
)
def test_every_name_sets_the_option_it_means(tmp_path: Path, text: str, name: str, value: Any) -> None:
    assert getattr(arguments(tmp_path, text), name) == value


def test_every_word_of_the_table_means_something_that_exists() -> None:
    parser, words = train.get_parser({}), train.read_words(train.CONFIG_WORDS)
    options = {action.dest: action for action in parser._actions}
    sections = {str(group.title).split()[0] for group in parser._action_groups[2:]}
    assert sections == {"model", "data", "training", "output", "distributed"}
    assert set(words.sections.values()) <= sections
    assert not set(words.sections) & sections
    for word, target in words.keys.items():
        assert (target if isinstance(target, str) else target[0]) in options, word
        assert word not in options, f"{word} is a flag's own name"
        assert "." not in word or word.split(".")[0] in sections


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ddp: {enabled: true, log_levl: INFO}", "unknown key 'log_levl' in section ddp; did you mean log_level?"),
        ("training: {epoch: 3}", "unknown key 'epoch' in section training; did you mean epochs?"),
        ("data: {enabled: true}", "unknown key 'enabled' in section data; see --help"),
        ("model: {qqqq: 1}", "unknown key 'qqqq' in section model; see --help for the options"),
        ("batch_sise: 3", "unknown key 'batch_sise'; did you mean batch_size?"),
        ("modle: {layers: 18}", "unknown section 'modle'; did you mean model?"),
        ("zz: {layers: 18}", "unknown section 'zz'; sections are data, distributed, model, output, training"),
        ("ddp: true", "ddp is a section and holds `option: value` lines, got True"),
        ("ddp: {log_level: LOUD}", "ddp.log_level must be one of DEBUG, INFO, WARNING, ERROR, got 'LOUD'"),
        ("ddp: {timeout: 1e9}", "ddp.timeout: '1e9' is not valid; use one of: float from 0.001 to 1e+07; correct"),
        ("local_rank: -5", "local_rank: '-5' is not valid; use one of: int from -1 to"),
        ("ddp: {enabled: 1}", "ddp.enabled is a switch, got 1; use true or false"),
        ("training: {lr: {peak: 1}}", "training.lr needs one value, got {'peak': 1}"),
        ("lr: {peak: 1}", "lr needs one value, got {'peak': 1}"),
        ("batchsize: 4\ndata: {batch_size: 4}", "batchsize and data.batch_size both set batchsize; keep one of them"),
        ("fp16: true\nbf16: true", "fp16 and bf16 both set amp; keep one of them"),
        ("mixed_precision: true", "mixed_precision must be one of off, fp16, bf16, got True"),
    ],
)
def test_a_wrong_line_is_named_with_its_section(tmp_path: Path, text: str, message: str) -> None:
    found = refused(tmp_path, text)
    assert message in found and found.startswith(str(tmp_path))


def test_the_original_script_has_no_section_for_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown section 'ddp'; sections are data, model, output, training"):
        read_config(build_parser(), config(tmp_path, "ddp: {enabled: true}"))
    path = config(tmp_path, "training: {epochs: 3}")
    assert parse_options(build_parser(), ["--config", path]).epochs == 3


@pytest.mark.parametrize(
    "argv",
    [
        ["--seed", "1"],
        ["--config", str(EXAMPLE)],
        ["--config", str(EXAMPLE), "--task", "predict", "--predict_path", "my photos", "--output", "5", "--lr", "1e-5"],
        [
            "--distributed",
            "--amp",
            "off",
            "--model_path",
            "None",
            "--resume",
            "auto",
            "--strategy",
            "fsdp",
            "--compile",
        ],
    ],
)
def test_the_saved_options_read_back_to_the_same(tmp_path: Path, argv: list[str]) -> None:
    args = train.get_arguments(argv)
    again = train.get_arguments(["--config", config(tmp_path, config_text(train.get_parser(), args))])
    assert {**vars(again), "config": None} == {**vars(args), "config": None}
    assert all(type(getattr(again, name)) is type(value) for name, value in vars(args).items() if name != "config")


def test_what_is_printed_first_is_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETROFIT_BATCH", "global")  # a twin is a change, too
    args = train.get_arguments(["--lr", "0.5", "--epochs", "20"])
    changed, num_others = changed_options(train.get_parser({}), args)
    assert changed == [("lr", 0.5, 0.001), ("batch", "global", "per_gpu")]
    assert num_others == len(vars(args)) - 2


def test_a_run_leaves_its_options_and_prints_them_once(ranks: Any, tmp_path: Path) -> None:
    argv = ["--config", str(EXAMPLE), "--epochs", "1", "--val_epoch", "9", "--logdir", str(tmp_path / "log")]
    printed = "".join(ranks(2).run(_train, argv))
    assert len(re.findall("others at their defaults", printed)) == 1 and "│ layers" in printed
    assert "momentum" not in printed
    (folder,) = (tmp_path / "log").iterdir()
    written = [path for path in folder.iterdir() if "tfevents" not in path.name and path.name != LOCK_FILE]
    assert sorted(path.suffix for path in written) == [".pt", ".yaml"]
    saved = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    assert saved["training"]["epochs"] == 1 and saved["distributed"]["distributed"] is True
    again = train.get_arguments(["--config", str(folder / "config.yaml")])
    assert vars(again) == {**vars(train.get_arguments(argv)), "config": str(folder / "config.yaml")}


def _train(argv: list[str]) -> str:
    """Run the whole of train.py, in a rank that is in its group already, and return what it printed."""
    import contextlib
    import io
    from unittest import mock

    import retrofit.distributed as rd

    with contextlib.ExitStack() as stack:
        for module, name in ((rd, "cleanup_distributed"), (rd.job, "setup_rank_logging")):
            stack.enter_context(mock.patch.object(module, name))
        printed = stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        assert train.main(argv) == 0
    return printed.getvalue()
