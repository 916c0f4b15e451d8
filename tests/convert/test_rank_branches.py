"""No rank waits alone for a figure: what is under a test of a rank's own samples is reduced before it, or is listed."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest
from convert.additions_of import write_converted
from convert.conversion import conversion
from convert.test_placement import converted_body, expanded, script_of
from verify.projects.launch import Launcher

from retrofit.training import read_project
from retrofit.training.distributed.ranks.rank_branches import rank_branches_of

# What is in the loop, and what the conversion makes of it. G: set before, g: read, R: reduced in its place.
HOISTED = {
    "if": ("if x.max() > 1:\n    print(loss.item())", "G\nif x.max() > 1:\n    print(g)"),
    "else": (
        "if x.max() > 1:\n    pass\nelse:\n    print(loss.item())",
        "G\nif x.max() > 1:\n    pass\nelse:\n    print(g)",
    ),
    "elif": (
        "if step == 1:\n    pass\nelif x.max() > 1:\n    print(loss.item())",
        "G\nif step == 1:\n    pass\nelif x.max() > 1:\n    print(g)",
    ),
    "after an elif": (
        "if x.max() > 1:\n    pass\nelif step == 2:\n    print(loss.item())",
        "G\nif x.max() > 1:\n    pass\nelif step == 2:\n    print(g)",
    ),
    "conditional expression": (
        "total = loss.item() if x.max() > 1 else total",
        "G\ntotal = g if x.max() > 1 else total",
    ),
    "short circuit": ("x.max() > 1 and print(loss.item())", "G\nx.max() > 1 and print(g)"),
    "or": ("x.max() > 1 or print(loss.item())", "G\nx.max() > 1 or print(g)"),
    "chained comparison": ("print(0 < x.max() < loss.item())", "G\nprint(0 < x.max() < g)"),
    "comprehension": (
        "print([loss.item() for row in x if row.max() > 1])",
        "G\nprint([g for row in x if row.max() > 1])",
    ),
    "continue": ("if x.max() > 1:\n    continue\nprint(loss.item())", "G\nif x.max() > 1:\n    continue\nprint(g)"),
    "continue deep inside": (
        "if step > 2:\n    if x.max() > 1:\n        continue\nprint(loss.item())",
        "G\nif step > 2:\n    if x.max() > 1:\n        continue\nprint(g)",
    ),
    "continue of the rank": (
        "if step > 2:\n    if rank != 0:\n        continue\nprint(loss.item())",
        "G\nif step > 2:\n    if rank != 0:\n        continue\nprint(g)",
    ),
    "number of turns": (
        "for _ in range(int(x.max())):\n    print(loss.item())",
        "G\nfor _ in range(int(x.max())):\n    print(g)",
    ),
    "elements chosen": (
        "for place in x.nonzero():\n    print(loss.item())",
        "G\nfor place in x.nonzero():\n    print(g)",
    ),
    "a loop left early": (
        "for row in range(2):\n    print(loss.item())\n    if x[row].max() > 1:\n        break",
        "G\nfor row in range(2):\n    print(g)\n    if rd.collectives.broadcast_object(bool(x[row].max() > 1)):\n"
        "        break",
    ),
    "through a variable": (
        "is_large = x.sum() > 0\nif is_large:\n    total += loss.item()",
        "is_large = x.sum() > 0\nG\nif is_large:\n    total += g",
    ),
    "a sum of losses for one rank": (
        "second = criterion(model(x), y * 2)\nif rank == 0:\n    print((loss + second).item())",
        "second = criterion(model(x), y * 2)\nglobal_value = (rd.reduce_loss(loss + second)).item()\nif rank == 0:\n"
        "    print(global_value)",
    ),
    "a random draw": (
        "if torch.rand(1) > 0.5:\n    print(loss.item())",
        "G\nif rd.data.draw_together(torch.rand, 1) > 0.5:\n    print(g)",
    ),
    "a random draw in a variable": (
        "draw = torch.randint(2, (1,))\nif epoch > 0 and draw:\n    print(loss.item())",
        "draw = rd.data.draw_together(torch.randint, 2, (1,))\nG\nif epoch > 0 and draw:\n    print(g)",
    ),
    "numpy": (
        "if y.numpy().mean() > 0:\n    print(loss.item())",
        "G\nif rd.reduce_loss(y.numpy().mean()) > 0:\n    print(g)",
    ),
}
IN_PLACE = {
    "the step": ("if step % 2 == 0:\n    print(loss.item())", "if step % 2 == 0:\n    print(R)"),
    "the epoch": ("if epoch > 0 and step > 1: print(loss.item())", "if epoch > 0 and step > 1: print(R)"),
    "form of the batch": (
        "if x.shape[1] == 4 and x.dim() == 2 and y is not None:\n    print(loss.item())",
        "if x.shape[1] == 4 and x.dim() == 2 and y is not None:\n    print(R)",
    ),
    "what is reduced itself": (
        "if loss.item() > total:\n    total = loss.item()\n    print(loss.item())",
        "G\nif g > total:\n    total = g\n    print(g)",
    ),
    "its condition": ("while loss.item() > 3:\n    loss = loss / 2", "while R > 3:\n    loss = loss / 2"),
    "an error for all": (
        "if torch.isnan(loss):\n    raise ValueError('nan')\nprint(loss.item())",
        "if torch.isnan(loss):\n    raise ValueError('nan')\nprint(R)",
    ),
    "set in both branches": (
        "if step % 2:\n    loss = loss * 2\nelse:\n    loss = loss * 3\nif step % 2 and rank == 0:\n"
        "    print(loss.item())",
        "if step % 2:\n    loss = loss * 2\nelse:\n    loss = loss * 3\nG\nif step % 2 and rank == 0:\n    print(g)",
    ),
}
OTHER = "other = criterion(model(x), y)"
LISTED = {
    "computed under the test": f"if x.max() > 1:\n    {OTHER}\n    loss = loss + other\n    print(loss.item())",
    "while": "while x.max() > 1:\n    print(loss.item())\n    x = x - 1",
    "not there before": f"if step % 2:\n    {OTHER}\n    other.backward()\nif step % 2 and x.max() > 1:\n"
    "    print(other.item())",
    "none before": f"other = None\nif step % 2:\n    {OTHER}\n    other.backward()\nif step % 2 and rank == 0:\n"
    "    print(other.item())",
    "asked for": f"other = None\nif step % 2:\n    {OTHER}\n    other.backward()\n"
    "if other is not None and rank == 0:\n    print(other.item())",
    "a count under the test": "if x.max() > 1:\n    hits = (model(x) > y).sum().item()\n    print(hits)",
    "a count in an expression": "hits = (model(x) > y).sum().item() if x.max() > 1 else 0\nprint(hits)",
    "a count after `and`": "x.max() > 1 and print((model(x) > y).sum().item())",
    "a count for one rank": "if rank == 0:\n    hits = (model(x) > y).sum().item()\n    print(hits)",
    "in a function": "def report(loss):\n    print(loss.item())\nif x.max() > 1:\n    report(loss)",
}


@pytest.mark.parametrize("name", [*HOISTED, *IN_PLACE])
def test_a_figure_is_reduced_where_all_ranks_run(name: str, tmp_path: Path) -> None:
    body, expected = {**HOISTED, **IN_PLACE}[name]
    assert converted_body(conversion(tmp_path, script_of(body))).replace('"', "'") == expanded(expected)


@pytest.mark.parametrize("name", LISTED)
def test_a_figure_that_some_ranks_compute_is_listed_with_its_line(name: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, script_of(LISTED[name]))
    body = converted_body(result)
    assert "print(rd." not in body and "rd.reduce" not in body
    (file,) = result.files
    words = ("print", "hits = (", "    report(loss)")
    printed = {line for line, text in enumerate(file.text.splitlines(), 1) if any(word in text for word in words)}
    shares = {finding.place.line for finding in result.listed if finding.message.startswith("rank 0's share")}
    assert shares & printed


CHANGED_BATCH = """\
def train(model, loader, optimizer):
    total = 0.0
    for batch in loader:
        for key in batch.keys():
            batch[key] = batch[key] * 2
        optimizer.zero_grad()
        loss = model(**batch)["loss"]
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total
"""


def test_a_loop_of_training_steps_keeps_the_ranks_together(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CHANGED_BATCH)
    rank_branches = rank_branches_of(project := read_project(tmp_path / "train.py"))
    (scope,) = (scope for scope in project.analysis.scopes() if getattr(scope.node, "name", "") == "train")
    (read,) = (node for node in ast.walk(scope.node) if isinstance(node, ast.AugAssign))
    assert rank_branches.around(scope, read.value) == []


def test_two_ranks_with_other_samples_do_not_wait_for_each_other(tmp_path: Path, launcher: Launcher) -> None:
    """All bodies in one script, in one real run: both ranks come to its end."""
    bodies = [body for body, _ in {**HOISTED, **IN_PLACE}.values()] + list(LISTED.values())
    bodies = [f"for _ in range(1):\n{textwrap.indent(body, '    ')}" for body in bodies if "while" not in body]
    text = script_of(*bodies).replace("import wandb", "import os").replace("rank = 0", "rank = int(os.environ['RANK'])")
    text += "\nprint('step', step, 'of rank', rank)\n"
    result = conversion(tmp_path, text)
    assert result.files[0].text.count("rd.reduce_loss(") > len(HOISTED)
    write_converted(tmp_path, result)
    run = launcher.run(tmp_path, "train.py", [], 2, timeout_s=60, RETROFIT_BATCH="global")
    assert run["statuses"] == [0, 0] and "step 5 of rank 0" in run["outputs"][0], run["outputs"]


EVALUATED = """\
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(24, 4), torch.randn(24, 2))
loader = DataLoader(data, 4, shuffle=True)
test_loader = DataLoader(data, 4)
model = torch.nn.Linear(4, 2)
criterion = torch.nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def mean():
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in test_loader:
            total += criterion(model(x), y).item()
    model.train()
    return total / len(test_loader)


best = 9.0
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        if TEST:
            best = loss.item()
            print(mean())
"""


def test_an_evaluation_that_a_rank_would_begin_alone_is_begun_by_rank_0(tmp_path: Path) -> None:
    result = conversion(tmp_path, EVALUATED.replace("TEST", "x.max() > 1"))
    assert "if rd.collectives.broadcast_object(bool(x.max() > 1)):" in result.files[0].text
    assert [finding.message for finding in result.listed] == [
        "rank 0's share: x.max() > 1, by which rank 0 decides for all"
    ]
    assert not conversion(tmp_path, EVALUATED.replace("TEST", "loss.item() < best")).refusals


DRAWN = {
    "torch.rand(1) < 0.1": False,  # all ranks take rank 0's number
    "torch.empty(1).bernoulli_(0.1)": True,
    "np.random.random_sample() < 0.1": False,
    "random.getrandbits(1)": False,
    "free.random() < 0.1": False,  # all ranks have the generator of rank 0
    "seeded.random() < 0.1": False,
    "noise.mean() > 0": False,  # all ranks decide by the noise of all
    "noise.size(0) > 2": False,
    "total < 1": False,  # of losses that were reduced, and computed from mixed samples
}


@pytest.mark.parametrize(("test", "parts"), DRAWN.items())
def test_a_branch_on_a_random_number_separates_ranks(test: str, parts: bool, tmp_path: Path) -> None:
    script = EVALUATED.replace("import torch\n", "import random\nimport numpy as np\nimport torch\n", 1).replace(
        "best = 9.0", "free, seeded, total = np.random.default_rng(), np.random.default_rng(0), 0.0"
    )
    mixed = "noise = torch.randn_like(x)\n        x = x + np.random.beta(1, 1) * noise\n        optimizer.zero_grad()"
    script = script.replace("optimizer.zero_grad()", mixed).replace("            best = loss.item()\n", "")
    script = script.replace("        if TEST:", f"        total += loss.item()\n        if {test}:")
    assert bool(conversion(tmp_path, script).refusals) == parts
