"""Functions that a library runs as a command: the group is joined at their beginning, and left at their end."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from convert.conversion import conversion, converted

from retrofit.convert.added.script_facts import script_facts

IMPORTS = """\
import logging
import click
import fire
import hydra
import torch
import typer
from absl import app, flags
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

"""
TRAINING = """\
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.rand(32, 3), torch.rand(32, 1)), batch_size=8, shuffle=True)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
"""
JOIN, LEAVE = "rd.setup_distributed()", "rd.cleanup_distributed()"
GUARD = '\nif __name__ == "__main__":\n'


def function(header: str, *further: str, ending: str = "") -> str:
    """Return a function that trains; `further` are functions that train, too."""
    body = textwrap.indent(TRAINING + ending, "    ")
    return "\n\n".join(f"{one}\n{body}" for one in (header, *further))


@pytest.mark.parametrize(
    "script",
    [
        function("@click.command()\n@click.option('--lr', default=0.1)\ndef main(lr):") + f"{GUARD}    main()\n",
        function("def main(lr=0.1):") + f"{GUARD}    fire.Fire(main)\n",
        function("def main(lr=0.1):") + f"{GUARD}    typer.run(main)\n",
        "cli = typer.Typer()\n\n\n" + function("@cli.command()\ndef main(lr: float = 0.1):") + f"{GUARD}    cli()\n",
        "FLAGS = flags.FLAGS\nflags.DEFINE_float('lr', 0.1, 'rate')\n\n\n"
        + function("def main(argv):\n    lr = FLAGS.lr")
        + f"{GUARD}    app.run(main)\n",
    ],
    ids=["click", "fire", "typer", "typer app", "absl"],
)
@pytest.mark.parametrize("ending", ["", "return None\n", "return model\n"], ids=["end", "return", "return a name"])
def test_the_group_is_there_while_the_command_runs(script: str, ending: str, tmp_path: Path) -> None:
    script = script.replace(
        "        optimizer.step()\n", f"        optimizer.step()\n    {ending}" if ending else "\\g"
    )
    script = script.replace("\\g", "        optimizer.step()\n")
    lines = converted(tmp_path, IMPORTS + script)
    first = next(number for number, line in enumerate(lines) if line.startswith("def main("))
    assert JOIN in lines[first + 1 : first + 3]
    assert lines[lines.index(LEAVE) + 1].startswith(ending.strip())
    assert lines.index(LEAVE) < next(number for number, line in enumerate(lines) if "__main__" in line)


def test_a_result_that_is_computed_is_computed_in_the_group(tmp_path: Path) -> None:
    lines = converted(
        tmp_path, IMPORTS + function("def main(lr=0.1):", ending="return str(model)\n") + "\nfire.Fire(main)\n"
    )
    assert LEAVE not in lines


def test_the_group_is_left_before_the_status_is_given_to_the_system(tmp_path: Path) -> None:
    script = f"import sys\n{IMPORTS}{function('def main(lr=0.1):', ending='return 0')}{GUARD}    sys.exit(main())\n"
    lines = converted(tmp_path, script)
    assert lines[lines.index("sys.exit(main())") - 1] == JOIN and lines[lines.index(LEAVE) + 1] == "return 0"


def test_the_group_is_joined_when_the_object_of_a_command_is_made(tmp_path: Path) -> None:
    script = "class Trainer:\n    def __init__(self):\n        self.rate = 0.1\n\n"
    script += textwrap.indent(function("def train(self, lr=0.1):"), "    ") + "\nfire.Fire(Trainer)\n"
    lines = converted(tmp_path, IMPORTS + script)
    assert lines[lines.index("def __init__(self):") + 1] == JOIN and LEAVE not in lines


def test_what_calls_several_commands_joins_the_group(tmp_path: Path) -> None:
    commands = function("@cli.command()\ndef train(lr=0.1):", "@cli.command()\ndef finetune(lr=0.1):")
    script = f"{IMPORTS}@click.group()\ndef cli():\n    pass\n\n\n{commands}{GUARD}    cli()\n"
    lines = converted(tmp_path, script)
    assert lines[lines.index("cli()") - 1] == JOIN and lines.count(JOIN) == 1


def test_a_model_that_the_script_has_made_is_made_in_the_group(tmp_path: Path) -> None:
    script = IMPORTS + function("def main(lr=0.1):").replace("    model = nn.Linear(3, 1)\n", "")
    lines = converted(
        tmp_path, script.replace("def main", "model = nn.Linear(3, 1)\n\n\ndef main") + "\nfire.Fire(main)\n"
    )
    assert lines.index(JOIN) < lines.index("model = nn.Linear(3, 1)")


DECLARED = """\
log = logging.getLogger(__name__)
SIZE = WIDTH, HEIGHT = 3, 4
try:
    import apex
except ImportError:
    apex = None


"""


def test_declarations_come_before_the_group(tmp_path: Path) -> None:
    lines = converted(tmp_path, IMPORTS + DECLARED + function("def main(lr=0.1):") + f"{GUARD}    main()\n")
    assert lines[lines.index("main()") - 1] == JOIN and lines[lines.index("main()") + 1] == LEAVE


HYDRA = IMPORTS + function('@hydra.main(config_path="conf", config_name="config")\ndef main(cfg):\n    lr = cfg.lr')


def test_the_folder_that_hydra_makes_is_that_of_all_processes(tmp_path: Path) -> None:
    lines = converted(tmp_path, f"{HYDRA}{GUARD}    main()\n")
    place = lines.index(JOIN)
    assert lines[place + 1 : place + 5] == [
        "rd.output.share_hydra_run()",
        "rd.output.quiet_logging()",
        "main()",
        LEAVE,
    ]


def test_a_function_of_hydra_that_another_script_calls_is_left_to_the_user(tmp_path: Path) -> None:
    findings = [one for one in conversion(tmp_path, HYDRA).findings if one.code == "RF509"]
    assert [(bool(one.edits), "before the function with @hydra.main is called" in one.help) for one in findings] == [
        (False, True)
    ]


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        (
            "@click.command()\n@click.option('--epochs', '-e', default=9)\n@click.argument('path')\ndef main(lr):",
            0,
        ),
        ("@click.group()\ndef cli():\n    pass\n\n\n@cli.command()\n@click.option('--epochs')\ndef main(lr):", None),
        ("def main(batch_size=4, epochs=9, lr=0.1):", "fire.Fire"),
        ("def main(path: str, batch_size: int = 4, epochs: int = 9, lr=0.1):", "typer.run"),
        ("flags.DEFINE_integer('epochs', 9, 'n')\n\n\ndef main(argv):\n    lr = 0.1", "app.run"),
    ],
    ids=["click", "click group", "fire", "typer", "absl"],
)
def test_the_page_knows_the_arguments_of_a_command(script: str, arguments: object, tmp_path: Path) -> None:
    expected = {
        0: ["--epochs", "2", "PATH"],
        None: [],
        "fire.Fire": ["--batch_size", "8", "--epochs", "2"],
        "typer.run": ["PATH", "--batch-size", "8", "--epochs", "2"],
        "app.run": ["--epochs", "2"],
    }
    call = f"{arguments}(main)" if isinstance(arguments, str) else "main()"
    project = conversion(tmp_path, f"{IMPORTS}{function(script)}\n{call}\n").project
    assert script_facts(project).verify_arguments == expected[arguments]  # type: ignore[index]
