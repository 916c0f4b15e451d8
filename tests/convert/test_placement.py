"""A figure is reduced before a guard for one rank, where every rank comes by, and once for several reads."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from convert.conversion import conversion
from verify.projects.launch import Launcher

from retrofit.analysis.files.start import Start
from retrofit.convert.added.files import additions
from retrofit.convert.plan import Conversion

SCRIPT = """\
import os

import torch
import wandb
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(24, 4), torch.randn(24, 2))
loader = DataLoader(data, 4, shuffle=False)
model = torch.nn.Linear(4, 2)
criterion = torch.nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rank = int(os.environ.get("RANK", 0))
total = 0
for epoch in range(1):
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
BODY
"""
# What is in the loop, and what the conversion makes of it.
BODIES = {
    "dictionary": ('wandb.log({"loss": loss.item()})', "G\nif M:\n    wandb.log({'loss': g})"),
    "condition": (
        "if step % 2 == 0:\n    wandb.log({'loss': loss.item()})",
        "if step % 2 == 0:\n    G\n    if M:\n        wandb.log({'loss': g})",
    ),
    "one line": ("if step % 2 == 0: wandb.log({'l': loss.item()})", "if step % 2 == 0: G; M and wandb.log({'l': g})"),
    "semicolons": ("step += 0; wandb.log({'l': loss.item()})", "step += 0; G; M and wandb.log({'l': g})"),
    "f-string": ("wandb.log({'t': f'{loss.item():.3f}'})", "G\nif M:\n    wandb.log({'t': f'{g:.3f}'})"),
    "print next to a guard": (
        "if step % 2 == 0:\n    print(loss.item())\n    wandb.log({'step': step})",
        "if step % 2 == 0:\n    print(R)\n    if M:\n        wandb.log({'step': step})",
    ),
    "with and try": (
        "with torch.no_grad():\n    try:\n        wandb.log({'l': loss.item()})\n    finally:\n        pass",
        "with torch.no_grad():\n    try:\n        G\n        if M:\n            wandb.log({'l': g})\n"
        "    finally:\n        pass",
    ),
    "elif": (
        "if step == 1:\n    pass\nelif step == 2:\n    wandb.log({'l': loss.item()})",
        "if step == 1:\n    pass\nelif step == 2:\n    G\n    if M:\n        wandb.log({'l': g})",
    ),
    "own guard": (
        "if rank == 0:\n    if step % 2:\n        print(loss.item())",
        "G\nif rank == 0:\n    if step % 2:\n        print(g)",
    ),
    "own guard and": ("if rank == 0 and step % 2: print(loss.item())", "G\nif rank == 0 and step % 2: print(g)"),
    "own expression": ("print(loss.item() if rank == 0 else 0)", "G\nprint(g if rank == 0 else 0)"),
    "short circuit": ("rank == 0 and print(loss.item())", "G\nrank == 0 and print(g)"),
    "early continue": ("if rank != 0:\n    continue\nprint(loss.item())", "G\nif rank != 0:\n    continue\nprint(g)"),
    "several reads": (
        "total += loss.item()\nif step % 2 == 0:\n    print(loss.item())\n    wandb.log({'l': loss.item()})",
        "G\ntotal += g\nif M and step % 2 == 0:\n    print(g)\n    wandb.log({'l': g})",
    ),
    "read before": (
        "if step % 2 == 0:\n    print(loss.item())\ntotal += loss.item()",
        "G\nif step % 2 == 0:\n    print(g)\ntotal += g",
    ),
    "other forms": (
        "wandb.log({'a': loss.item()})\nwandb.log({'b': float(loss)})",
        "T\nif M:\n    wandb.log({'a': g.item()})\n    wandb.log({'b': float(g)})",
    ),
    "a figure and a tensor": ("print(loss.item())\nprint(loss.detach())", "T\nprint(g.item())\nprint(g.detach())"),
    "only under conditions": (
        "if step % 2 == 0:\n    print(loss.item())\nif step % 3 == 0:\n    print(loss.item())",
        "if step % 2 == 0:\n    print(R)\nif step % 3 == 0:\n    print(R)",
    ),
    "changed between": (
        "total += loss.item()\nloss = loss * 2\ntotal += loss.item()",
        "total += R\nloss = loss * 2\ntotal += R",
    ),
    "changed in place": (
        "with torch.no_grad():\n    total += loss.item()\n    loss.mul_(2)\n    total += loss.item()",
        "with torch.no_grad():\n    total += R\n    loss.mul_(2)\n    total += R",
    ),
    "its own name": ("loss = loss.item()\nwandb.log({'l': loss})", "loss = R\nif M:\n    wandb.log({'l': loss})"),
    "comment": (
        "# what is logged\nwandb.log({  # the loss\n    'l': loss.item(),\n})",
        "G\n# what is logged\nif M:\n    wandb.log({  # the loss\n        'l': g,\n    })",
    ),
    "several guarded": (
        "wandb.log({'step': step})\nwandb.log({'l': loss.item()})",
        "G\nif M:\n    wandb.log({'step': step})\n    wandb.log({'l': g})",
    ),
    "conditional expression": (
        "wandb.log({'l': loss.item()}) if step % 2 else None",
        "rd.output.on_main_process(wandb.log, {'l': R}) if step % 2 else None",
    ),
}
WORDS = {
    "G": "g = R", "T": "g = rd.reduce_loss(loss)", "R": "rd.reduce_loss(loss).item()", "M": "rd.is_main_process()",
}  # fmt: skip


def script_of(*bodies: str) -> str:
    return SCRIPT.replace("BODY", textwrap.indent("\n".join(bodies), 8 * " "))


def body_of(text: str) -> str:
    mark = "        optimizer.step()\n"
    return textwrap.dedent(text[text.index(mark) + len(mark) :])


def converted_body(result: Conversion) -> str:
    assert not result.refusals
    return body_of(result.files[0].text.replace("rd.cleanup_distributed()\n", "")).rstrip()


def expanded(text: str) -> str:
    for word in "GTRM":
        text = "".join(WORDS[word] if part == word else part for part in _words(text))
    return "".join("global_loss" if part == "g" else part for part in _words(text))


def _words(text: str) -> list[str]:
    return re.split(r"(?<![\w'])(\w+)(?![\w'])", text)


class Stub:
    """A stub of the runtime, wandb and print in a body that is run without them; it notes what it is told."""

    def __init__(self, is_main: bool, offset: float) -> None:
        self.is_main, self.reduced, self.seen = is_main, 0, []
        self.offset = offset
        self.rd = SimpleNamespace(reduce_loss=self._reduce, is_main_process=lambda: is_main)
        on_main = lambda function, *given: function(*given) if is_main else None  # noqa: E731
        self.rd.output = SimpleNamespace(on_main_process=on_main)
        self.wandb = SimpleNamespace(log=lambda *given: self.seen.append(("log", given)))

    def _reduce(self, loss: Any) -> Any:
        self.reduced += 1
        return loss + self.offset if self.offset else loss

    def run(self, body: str) -> list[Any]:
        names = {"rd": self.rd, "wandb": self.wandb, "torch": torch, "total": 0, "rank": 0 if self.is_main else 1}
        names["print"] = lambda *given: self.seen.append(("print", given)) if self.is_main else None
        loop = "for step in range(4):\n    loss = torch.tensor(step + 0.5)\n" + textwrap.indent(body, "    ")
        exec(compile(loop, "body", "exec"), names)
        return [*self.seen, ("total", names["total"])]


@pytest.mark.parametrize("name", BODIES)
def test_where_a_figure_is_reduced(name: str, tmp_path: Path) -> None:
    body, expected = BODIES[name]
    after = converted_body(conversion(tmp_path, script_of(body)))
    assert after.replace('"', "'") == expanded(expected)
    alone = Stub(True, 0.0)
    assert alone.run(after) == Stub(True, 0.0).run(body), "one process does something else than before"
    main, other = Stub(True, 100.0), Stub(False, 100.0)
    main.run(after)
    other.run(after)
    assert main.reduced == other.reduced > 0
    assert not [entry for entry in other.seen if entry[0] == "log"]


def test_a_new_name_is_not_used_elsewhere_in_the_file(tmp_path: Path) -> None:
    script = script_of("wandb.log({'l': loss.item()})") + "\ndef global_loss(global_loss_2):\n    return 0\n"
    assert "global_loss_3 = rd.reduce_loss(loss).item()" in converted_body(conversion(tmp_path, script))


@pytest.mark.parametrize(
    "body",
    [
        "try:\n    total += 1\nexcept ValueError:\n    print(loss.item())",
        "while rank == 0 and loss.item() > 9:\n    break",
    ],
)
def test_a_figure_that_cannot_be_reduced_is_listed(body: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, script_of(body))
    (finding,) = (finding for finding in result.findings if finding.code == "RF401")
    assert not finding.edits and not finding.refusal
    assert "reduce_loss" not in converted_body(result)


def test_two_ranks_log_the_figures_of_one_process(tmp_path: Path, launcher: Launcher) -> None:
    """All bodies in one script, in one real run: nothing hangs, and what is logged is that of all samples."""
    stub = (
        "import json\ndef log(entry):\n    with open('log.jsonl', 'a') as f:\n        print(json.dumps(entry), file=f)"
    )
    bodies = [body for name, (body, _) in BODIES.items() if "changed" not in name and "its own" not in name]
    bodies = [body for body in bodies if "continue" not in body and "f'" not in body]
    logged = []
    for folder, world_size in ((tmp_path / "one", 1), (tmp_path / "two", 2)):
        folder.mkdir()
        result = conversion(
            folder,
            script_of(*bodies).replace("rank = 0", "import os\nrank = int(os.environ.get('RANK', 0))"),
            wandb=stub,
        )
        for path, data in {
            **{f.path: f.data for f in result.files},
            **additions(Start(folder / "train.py", folder), True),
        }.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        run = launcher.run(folder, "train.py", [], world_size, timeout_s=60, RETROFIT_BATCH="global")
        assert run["statuses"] == [0] * world_size, run["outputs"]
        logged.append([json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()])
    one, two = logged
    assert len(one) == len(two) > 20
    for before, after in zip(one, two):
        assert after == pytest.approx(before, rel=1e-5)


@pytest.mark.parametrize(
    "training",
    [
        "if __name__ == '__main__':\n    model.double()\n    TRAIN",
        "if __name__ == '__main__':\n    model.to(device)\n    if len(data) > 3:\n        model.cpu()\n    TRAIN",
        "if len(data) > 3:\n    model.to(device)\n    model.train()\n    TRAIN",
        "for run in range(2):\n    model.to(device)\n    TRAIN",
        "with torch.enable_grad():\n    model.to(device)\n    TRAIN",
    ],
)
def test_a_model_is_wrapped_before_the_block_that_prepares_and_trains_it_ends(tmp_path: Path, training: str) -> None:
    before, loop = SCRIPT.replace("BODY", "pass").split("for epoch")
    indent = "\n    "
    loop = f"for epoch{loop}".replace("\n", indent).rstrip()
    result = conversion(tmp_path, f"{before}device = 'cpu'\n{training.replace('TRAIN', loop)}\nprint('done')\n")
    (text,) = (file.text for file in result.files)
    assert not result.refusals
    assert text.index("rd.distribute_model(model)") < text.index("for epoch"), text
