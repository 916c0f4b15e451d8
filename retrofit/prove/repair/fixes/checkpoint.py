"""Repairs of checkpoints: names, devices, and what is saved and not restored."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import add_argument, insert_after, replace

from ..script import Candidate, Script, keyword_of
from ..writing import unwrapped
from .collectives import by_rank
from .model import wraps
from .samples import set_epoch


def unprefixed(script: Script) -> Iterator[Candidate]:
    """Save what is wrapped, and load it into what is wrapped."""
    wrapped = {ast.unparse(t) for t, _ in wraps(script)}
    names = {
        ast.unparse(c.func.value): c
        for c in script.calls("state_dict")
        if isinstance(c.func, ast.Attribute) and isinstance(c.func.value, ast.Name)
    }
    for name in names:
        is_model = name in wrapped or "model" in name or "net" in name
        if not is_model:
            continue
        inner = f"{script.runtime}.unwrap_model({name})" if script.runtime else f'getattr({name}, "module", {name})'
        edits = [
            replace(script.source, call.func.value, inner)  # type: ignore[attr-defined]
            for call in script.calls("state_dict", "load_state_dict")
            if isinstance(call.func, ast.Attribute)
            and ast.unparse(call.func.value) == name
            and (last_name(call.func) == "state_dict" or name in wrapped)
        ]
        if edits:
            yield Candidate(f"save {name} without its wrapper", tuple(edits))


def map_location(script: Script) -> Iterator[Candidate]:
    edits = []
    for call in script.calls("load"):
        words = ast.unparse(call.func)
        if words in ("torch.load", "load") and keyword_of(call, "map_location") is None and len(call.args) < 2:
            value = f"{script.runtime}.devices.own_storage" if script.runtime else '"cpu"'
            edits += add_argument(script.source, call, f"map_location={value}")
    if edits:
        yield Candidate("load to the CPU first, or to the own GPU", tuple(edits))


def restored(script: Script) -> Iterator[Candidate]:
    """Restore what is saved, on every rank."""
    for call in script.calls("load_state_dict", "load_checkpoint"):
        branch = next(
            (o for o in script.source.ancestors(call) if isinstance(o, ast.If) and by_rank(script, o.test)), None
        )
        if branch is not None and not branch.orelse:
            yield Candidate("restore it on every rank", (unwrapped(script, branch),))
    yield from _saved_and_not_loaded(script)
    yield from _of_the_runtime(script)
    yield from set_epoch(script)


def _saved_and_not_loaded(script: Script) -> Iterator[Candidate]:
    loads = [c for c in script.calls("load_state_dict") if isinstance(c.func, ast.Attribute) and c.args]
    done = {ast.unparse(c.func.value) for c in loads}  # type: ignore[attr-defined]
    missing: list[tuple[str, str]] = []
    for node in script.source.nodes.of(ast.Dict):
        for key, value in zip(node.keys, node.values):
            if isinstance(key, ast.Constant) and _state_of(value) and _state_of(value) not in done:
                missing.append((repr(key.value), _state_of(value)))
    for call in script.calls("dict"):
        for keyword in call.keywords:
            if _state_of(keyword.value) and _state_of(keyword.value) not in done:
                missing.append((repr(keyword.arg), _state_of(keyword.value)))
    likely = [load for load in loads if isinstance(load.args[0], ast.Subscript)]
    if not missing or not likely:
        return
    place, content = likely[-1], script.text(likely[-1].args[0].value)  # type: ignore[attr-defined]
    lines = [f"{name}.load_state_dict({content}[{_quoted(script, key)}])" for key, name in dict.fromkeys(missing)]
    names = ", ".join(name for _, name in dict.fromkeys(missing))
    yield Candidate(f"restore {names}, too", (insert_after(script.source, script.statement(place), lines),))


def _quoted(script: Script, key: str) -> str:
    """Return a text in the quotes that the file uses."""
    return key.replace("'", '"') if script.source.text.count('"') >= script.source.text.count("'") else key


def _state_of(value: ast.expr | None) -> str:
    """Return the name of what a call of state_dict() is of."""
    is_state = isinstance(value, ast.Call) and last_name(value.func) == "state_dict"
    return ast.unparse(value.func.value) if is_state else ""  # type: ignore[union-attr]


def _of_the_runtime(script: Script) -> Iterator[Candidate]:
    """Give load_checkpoint what save_checkpoint is given."""
    loads = list(script.calls("load_checkpoint"))
    saves = list(script.calls("save_checkpoint"))
    for load in loads:
        known = {keyword.arg for keyword in load.keywords if keyword.arg}
        spread = [keyword.value for keyword in load.keywords if keyword.arg is None]
        for save in saves:
            given: dict[str, ast.expr] = {
                k.arg: k.value for k in save.keywords if k.arg and isinstance(k.value, (ast.Name, ast.Attribute))
            }
            for other in [*spread, *(k.value for k in save.keywords if k.arg is None)]:
                for key, value in _entries(script, other).items():
                    if other in spread:
                        known.add(key)
                    else:
                        given[key] = value
            missing = {
                name: script.text(value)
                for name, value in given.items()
                if name not in known and name not in ("rng_state", "position", "best", "bad_epochs", "epoch")
            }
            if missing:
                text = ", ".join(f"{name}={value}" for name, value in missing.items())
                yield Candidate(f"restore {', '.join(missing)}, too", tuple(add_argument(script.source, load, text)))
            has_position = keyword_of(save, "position")
            target = next((t for t, v in script.assigned if v is load), None)
            if has_position is not None and target is not None and not list(script.calls("resume")):
                epochs, content = script.text(has_position.value), script.text(target)
                line = f'{epochs}.resume({content}["position"], {content}["rng_states"])'
                yield Candidate(
                    "continue at the position of the checkpoint",
                    (insert_after(script.source, script.statement(load), [line]),),
                )
            if (
                len(save.args) > 1
                and len(load.args) == 1 + 1
                and ast.unparse(save.args[1]) != ast.unparse(load.args[1])
            ):
                edit = replace(script.source, load.args[0], f"{script.text(load.args[0])}, {script.text(save.args[1])}")
                yield Candidate("restore the optimizer, too", (edit,))


def _entries(script: Script, node: ast.expr) -> dict[str, ast.expr]:
    values = [node] + [v for t, v in script.assigned if ast.unparse(t) == ast.unparse(node)]
    found: dict[str, ast.expr] = {}
    for value in values:
        if isinstance(value, ast.Dict):
            for key, item in zip(value.keys, value.values):
                if isinstance(key, ast.Constant) and isinstance(item, (ast.Name, ast.Attribute)):
                    found[str(key.value)] = item
    return found
