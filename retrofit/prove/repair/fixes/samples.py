"""Repairs of which samples a rank draws: orders, shards, evaluations, batch sizes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import Edit, insert_after, insert_before, replace, under_condition
from retrofit.training.placement import import_edit

from ..script import Candidate, Script, keyword_of
from ..writing import removed, without_argument

PASSES_ON = ("enumerate", "tqdm", "iter", "zip", "islice", "steps")
MAKES_LOADER = ("DataLoader", "distribute_loader")


def set_epoch(script: Script) -> Iterator[Candidate]:
    """Call set_epoch at the start of each epoch."""
    for loop in script.epoch_loops:
        number = _number_of(loop)
        for name in _with_epochs(script, loop) if number else ():
            if script.runtime:
                lines = [f"{script.runtime}.set_epoch({name}, {number})"]
            else:
                lines = [f"if {name} is not None:", f"    {name}.set_epoch({number})"]
            if name.endswith(".sampler"):
                lines[0] = f'if hasattr({name}, "set_epoch"):'
            edit = insert_before(script.source, loop.body[0], lines)
            yield Candidate(f"call set_epoch of {name} in each epoch", (edit,))


def _number_of(loop: ast.For | ast.While) -> str:
    """Return the name of the epoch's number in a loop."""
    if isinstance(loop, ast.For):
        target = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else loop.target
        return target.id if isinstance(target, ast.Name) else ""
    tests = [part for part in ast.walk(loop.test) if isinstance(part, ast.Compare)]
    for test in tests:
        if "epoch" in ast.unparse(test.left):
            return ast.unparse(test.left)
    return ""


def _with_epochs(script: Script, loop: ast.For | ast.While) -> list[str]:
    """Return the names of what knows epochs: with the runtime the loader, else the sampler."""
    function, before = script.function_of(loop), loop.lineno
    visible = [
        (target, value)
        for target, value in script.assigned
        if script.function_of(target) in (function, script.source.tree) and target.lineno < before
    ]
    with_method = {
        node.name
        for one in script.others
        for node in one.source.nodes.of(ast.ClassDef)
        if any(isinstance(part, ast.FunctionDef) and part.name == "set_epoch" for part in node.body)
    }
    functions = MAKES_LOADER if script.runtime else ("DistributedSampler", *with_method)
    names = [ast.unparse(t) for t, v in visible if _makes(v, functions)]
    if not script.runtime:
        names += [f"{ast.unparse(t)}.sampler" for t, v in visible if _makes(v, MAKES_LOADER)]
    else:
        names += [name for name in _loaders_unpacked(script, loop) if name not in names]
    used = {part.id for part in ast.walk(loop) if isinstance(part, ast.Name)}
    names = sorted(dict.fromkeys(names), key=lambda name: (name.split(".")[0] not in used, "val" in name))
    return [name for name in names if not name.startswith(("val", "test", "eval"))]


def _loaders_unpacked(script: Script, loop: ast.AST) -> list[str]:
    """Return the names like a loader that come from a function: `train_loader, val_loader = get_loaders()`."""
    names = []
    for node in script.source.nodes.of(ast.Assign):
        if node.lineno < loop.lineno and isinstance(node.value, ast.Call):  # type: ignore[attr-defined]
            parts = [part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)]
            names += [name for name in parts if "loader" in name]
    return names


def _makes(value: ast.expr, functions: tuple[str, ...]) -> bool:
    return any(isinstance(part, ast.Call) and last_name(part.func) in functions for part in ast.walk(value))


def same_sampler_seed(script: Script) -> Iterator[Candidate]:
    """Give samplers, batch samplers and generators of the order one seed on all ranks."""
    for call in script.calls():
        seed = keyword_of(call, "seed")
        if seed is not None and script.mentions_rank(seed.value):
            edit = replace(script.source, seed.value, script.without_rank(seed.value))
            yield Candidate(f"give {ast.unparse(call.func)} one seed on all ranks", (edit,))
    for call in script.calls("manual_seed", "default_rng", "RandomState", "Random"):
        is_own = _is_generator(call) and call.args and script.mentions_rank(call.args[0])
        if is_own:
            edit = replace(script.source, call.args[0], script.without_rank(call.args[0]))
            yield Candidate("give the generator of the order one seed on all ranks", (edit,))


def _is_generator(call: ast.Call) -> bool:
    """Return whether a call seeds a generator of its own, and not the one of the library."""
    if last_name(call.func) != "manual_seed":
        return True
    return isinstance(call.func, ast.Attribute) and "Generator" in ast.unparse(call.func.value)


def distribute_loader(script: Script) -> Iterator[Candidate]:
    """With the runtime: let distribute_loader shard a loader, in the place of a shard that is made by hand."""
    if not script.runtime:
        return
    source = script.source
    for branch in source.nodes.of(ast.If):
        parts = [part for part in branch.body if isinstance(part, ast.Assign)]
        makes = [part for part in parts if _makes(part.value, ("DataLoader",))]
        asks = "is_distributed" in ast.unparse(branch.test) or "get_world_size" in ast.unparse(branch.test)
        if len(makes) == 1 and asks and not branch.orelse and len(parts) == len(branch.body):
            name = ast.unparse(makes[0].targets[0])
            text = f"{name} = {script.runtime}.distribute_loader({name})"
            yield Candidate(f"shard {name} with {script.runtime}.distribute_loader", (replace(source, branch, text),))
    done = {ast.unparse(a) for call in script.calls("distribute_loader") for a in call.args}
    for node in source.nodes.of(ast.Assign):
        is_loader = isinstance(node.value, ast.Call) and last_name(node.value.func) == "DataLoader"
        target = node.targets[0]
        if is_loader and isinstance(target, ast.Name) and not target.id.startswith(("val", "test", "eval")):
            own = [c for c in script.calls("distribute_loader", within=script.block(node)[0]) if c.lineno > node.lineno]
            if target.id not in done or not own:
                line = f"{target.id} = {script.runtime}.distribute_loader({target.id})"
                edit = insert_after(source, node, [line])
                yield Candidate(f"shard {target.id} with {script.runtime}.distribute_loader", (edit,))


def shard_loader(script: Script) -> Iterator[Candidate]:
    """In plain torch: a DistributedSampler for a training loader without a sampler."""
    if script.runtime:
        return
    for call in script.calls("DataLoader"):
        shuffle, sampler = keyword_of(call, "shuffle"), keyword_of(call, "sampler")
        if sampler is not None or keyword_of(call, "batch_sampler") or not call.args:
            continue
        if shuffle is None or (isinstance(shuffle.value, ast.Constant) and not shuffle.value.value):
            continue
        distributed, data = script.is_distributed(call), script.text(call.args[0])
        statement = script.statement(call)
        line = f"sampler = DistributedSampler({data}) if {distributed} else None"
        edits = [
            import_edit(script.source, "from torch.utils.data.distributed import DistributedSampler"),
            insert_before(script.source, statement, [line]),
            replace(script.source, shuffle, "shuffle=sampler is None, sampler=sampler"),
        ]
        if any("DistributedSampler" in ast.unparse(n) for n in script.source.nodes.of(ast.ImportFrom)):
            del edits[0]
        loops = [loop for loop in script.epoch_loops if _number_of(loop)]
        for loop in loops[:1]:
            lines = ["if sampler is not None:", f"    sampler.set_epoch({_number_of(loop)})"]
            edits.append(insert_before(script.source, loop.body[0], lines))
        yield Candidate("draw the training set with a DistributedSampler", script.with_imports(edits))


def shard_stream(script: Script) -> Iterator[Candidate]:
    """Let an IterableDataset yield every world_size-th sample."""
    for node in script.source.nodes.of(ast.ClassDef):
        if not any("IterableDataset" in ast.unparse(base) for base in node.bases):
            continue
        for function in node.body:
            loops = (
                [part for part in ast.walk(function) if isinstance(part, ast.For) and any_yield(part)]
                if isinstance(function, ast.FunctionDef) and function.name == "__iter__"
                else []
            )
            for loop in loops[:1]:
                rank, world_size = script.rank(loop), script.world_size(loop)
                text = f"itertools.islice({script.text(loop.iter)}, {rank}, None, {world_size})"
                edits: list[Edit] = [replace(script.source, loop.iter, text)]
                if "itertools" not in {a.name for n in script.source.nodes.of(ast.Import) for a in n.names}:
                    edits.insert(0, import_edit(script.source, "import itertools"))
                yield Candidate("let each rank read its part of the stream", script.with_imports(edits))


def any_yield(node: ast.AST) -> bool:
    return any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in ast.walk(node))


def exact_evaluation(script: Script) -> Iterator[Candidate]:
    """Evaluate dataset[rank::world_size], in the place of a DistributedSampler that pads or leaves out."""
    for call in script.calls("DataLoader"):
        sampler = keyword_of(call, "sampler")
        if sampler is None or not call.args or _in_training(script, call):
            continue
        made = [(t, v) for t, v in script.assigned if ast.unparse(t) == ast.unparse(sampler.value)]
        value = made[-1][1] if made and isinstance(sampler.value, ast.Name) else sampler.value
        if not _makes(value, ("DistributedSampler",)):
            continue
        data = script.text(call.args[0])
        shard = f"range({script.rank(call)}, len({data}), {script.world_size(call)})"
        edits = [
            replace(script.source, call.args[0], f"torch.utils.data.Subset({data}, {shard})"),
            without_argument(script, call, sampler),
        ]
        if made and value is not sampler.value and _uses(script, ast.unparse(sampler.value)) == 1:
            edits.append(removed(script, script.statement(made[-1][0])))
        if "torch" not in {a.asname or a.name for n in script.source.nodes.of(ast.Import) for a in n.names}:
            edits.insert(0, import_edit(script.source, "import torch"))
        yield Candidate("evaluate each sample once: every world_size-th on a rank", script.with_imports(edits))
    for call in script.calls("DataLoader"):
        drop = keyword_of(call, "drop_last")
        if drop is not None and not _in_training(script, call):
            edit = without_argument(script, call, drop)
            yield Candidate("evaluate the last, smaller batch, too", (edit,))
    for call in script.calls("gather"):
        if isinstance(call.func, ast.Attribute) and "accelerator" in ast.unparse(call.func.value):
            edit = replace(script.source, call.func, f"{script.text(call.func.value)}.gather_for_metrics")
            yield Candidate("gather without the samples that pad the last batch: gather_for_metrics", (edit,))


def _uses(script: Script, name: str) -> int:
    nodes = script.source.nodes.of(ast.Name)
    return sum(node.id == name and isinstance(node.ctx, ast.Load) for node in nodes)


def _in_training(script: Script, call: ast.Call) -> bool:
    """Return whether a loader is one of training: it shuffles, or its name is drawn from where backward is called."""
    shuffle = keyword_of(call, "shuffle")
    if shuffle is not None and ast.unparse(shuffle.value) != "False":
        return True
    statement = script.statement(call)
    names = {t.id for t in getattr(statement, "targets", ()) if isinstance(t, ast.Name)}
    trained = {part.id for loop in script.batch_loops for part in ast.walk(loop.iter) if isinstance(part, ast.Name)}
    return bool(names & trained)


def even_shards(script: Script) -> Iterator[Candidate]:
    """Cut shards of equal length: range(rank, n - n % world_size, world_size)."""
    for call in script.calls("range"):
        if len(call.args) == 3 and script.mentions_rank(call.args[0]) and not script.mentions_rank(call.args[1]):
            length, step = script.text(call.args[1]), script.text(call.args[2])
            edit = replace(script.source, call.args[1], f"{length} - {length} % {step}")
            yield Candidate("cut shards of equal length", (edit,))
    for call in script.calls("DistributedSampler"):
        if keyword_of(call, "drop_last") is None:
            from retrofit.analysis.edits import add_argument

            yield Candidate("draw shards of equal length", tuple(add_argument(script.source, call, "drop_last=True")))


def batch_size(script: Script) -> Iterator[Candidate]:
    """Divide the batch size of a training loader by the number of ranks."""
    for call in script.calls("DataLoader"):
        keyword = keyword_of(call, "batch_size")
        size = keyword.value if keyword else call.args[1] if len(call.args) > 1 else None
        sampler = keyword_of(call, "sampler")
        if size is None or (sampler is None and not _in_training(script, call)) or "micro_batch" in script.text(size):
            continue
        rd = script.runtime
        text = (
            f"{rd}.data.micro_batch({script.text(size)})" if rd else f"{script.text(size)} // {script.world_size(call)}"
        )
        edit = replace(script.source, size, text)
        yield Candidate("divide the batch by the number of ranks", script.with_imports([edit]))


def stepped_slices(script: Script) -> Iterator[Candidate]:
    """Let slices begin at the rank: items[rank::world_size] for items[0::world_size]."""
    for node in script.source.nodes.of(ast.Slice):
        step = node.step
        if step is not None and script.is_world_size(step) is False and "world" not in ast.unparse(step):
            continue
        if step is not None and (node.lower is None or isinstance(node.lower, ast.Constant)):
            start, end = script.source.span(node)
            upper = script.text(node.upper) if node.upper else ""
            text = f"{script.rank(node)}:{upper}:{script.text(step)}"
            yield Candidate("take the slice of this rank", (Edit(script.source, start, end, text),))


def under_distributed(script: Script, place: ast.stmt, lines: list[str]) -> list[str]:
    return under_condition(script.source, place, script.is_distributed(place), lines)
