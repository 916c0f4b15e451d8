"""Long chains of calls and of assignments, deep nesting: read in a time that grows with them, or refused in a line."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from pathlib import Path

import pytest

from retrofit.analysis.deep_stack import with_deep_stack
from retrofit.cli import main
from retrofit.rules.registry import find_hazards
from retrofit.training import read_project

START = """\
import torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(16, 3)), 4, shuffle=True)
model = torch.nn.Linear(3, 1)
"""
FOUND = ["RF103", "RF209", "RF306", "RF605"]  # whatever comes before the loss


def script(*of_loss: str, before: str = "") -> str:
    """Return a training whose model and loss come from the given lines."""
    body = "".join(f"    {line}\n" for line in of_loss or ["loss = model(x).mean()"])
    optimizer = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    steps = "    loss.backward()\n    optimizer.step()\n    optimizer.zero_grad()\n"
    return f"{START}{before}{optimizer}for (x,) in loader:\n{body}{steps}"


def aliases(first: str, last: str, number: int) -> list[str]:
    return [f"a0 = {first}", *(f"a{i + 1} = a{i}" for i in range(number)), f"{last} = a{number}"]


LONG: dict[str, Callable[[int], str]] = {
    "chained calls": lambda n: script(f"loss = model(x){'.abs()' * n}.mean()"),
    "chained methods": lambda n: script(before=f"y = model{'.a().b()' * (n // 2)}\n"),
    "names of the model": lambda n: script(before="\n".join(aliases("model", "model", n)) + "\n"),
    "names of the loss": lambda n: script(*aliases("model(x).mean()", "loss", n)),
    "terms in a sum": lambda n: script("loss = " + " + ".join(["model(x).mean()"] * n)),
    "terms one by one": lambda n: script("loss = 0", *(f"loss = loss + {i} * model(x).mean()" for i in range(n))),
    "functions": lambda n: script(
        f"loss = f{n}(model(x))",
        before="def f0(x): return x.mean()\n" + "".join(f"def f{i + 1}(x): return f{i}(x)\n" for i in range(n)),
    ),
    "negations": lambda n: script("loss = model(x).mean()", f"z = {'not ' * n}x"),
}

OF_ITSELF = [
    "random.sample(names, 4)",
    "random.choices(names, k=4)",
    "names or random.sample(list(names), 4)",
    "random.choice(names)",
    "list(names.values())",
    "list(zip(names, names))",
    "zip(*names)",
    "list(enumerate(names))",
    "list(map(str, names))",
    "[random.choice(names) for _ in names]",
    "{**names, 'a': names}",
    "dict(zip(names, names)).values()",
]


def calls(text: str, folder: Path) -> int:
    """Return the number of Python calls of a check: unlike seconds, the same on every machine."""
    (folder / "train.py").write_text(text)

    def check() -> int:
        profile = cProfile.Profile()
        profile.enable()
        list(find_hazards(read_project(folder / "train.py")))
        profile.disable()
        return pstats.Stats(profile).total_calls  # type: ignore[attr-defined]

    return with_deep_stack(check)


@pytest.mark.parametrize("name", LONG)
def test_twice_the_code_takes_twice_the_work(name: str, tmp_path: Path) -> None:
    none, one, two = (calls(LONG[name](number), tmp_path) for number in (2, 60, 120))
    assert two - none < 2.6 * (one - none)


@pytest.mark.parametrize("name", LONG)
def test_long_code_is_read(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(LONG[name](210))
    assert main(["check", str(tmp_path / "train.py")]) == 1
    out, err = capsys.readouterr()
    assert [code for code in FOUND if code not in out] == [] and err == ""


@pytest.mark.parametrize(
    "text",
    ["loss = " + "(" * 5000 + "x" + ")" * 5000, "z = " + "-" * 200_000 + "x", "z = x" + "[0]" * 300_000],
    ids=["brackets", "signs", "subscripts"],
)
def test_code_that_is_nested_too_deeply_is_refused_in_one_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(script(text))
    for command in ("check", "convert"):
        assert main([command, str(tmp_path / "train.py")]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"retrofit {command}: error: train.py:") and len(line) < 200


@pytest.mark.parametrize("value", OF_ITSELF)
def test_what_a_name_holds_may_be_taken_from_itself(
    value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = f"import random\nnames = {{'b': 1}}\nnames = {value}\nfor name in names:\n    name.strip()\n"
    (tmp_path / "train.py").write_text(script(before=before))
    assert main(["check", str(tmp_path / "train.py")]) == 1
    out, err = capsys.readouterr()
    assert [code for code in FOUND if code not in out] == [] and err == ""


def test_what_a_loop_opens_again_and_again_is_read_in_a_moment(tmp_path: Path) -> None:
    opened = ["z, other = z", "z = z['a']", "other = z['b']", "z, other = other, z"]
    loss = "loss = torch.nn.functional.cross_entropy(z @ z.t(), torch.arange(len(z)))"
    text = script("z = model(x)", "while not torch.is_tensor(z):", *(f"    {line}" for line in opened), loss)
    assert calls(text, tmp_path) < 1_500_000
