"""Repairs of what is wrapped, called through its wrapper, synchronised and averaged."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import Edit, indent_step, indentation, insert_after, insert_before, replace
from retrofit.training.placement import import_edit

from ..script import Candidate, Script, keyword_of
from ..writing import delete_or_cut, lines_of, under, unwrapped, with_keyword, without_argument

WRAPPERS = ("DDP", "DistributedDataParallel")
OPTIMIZERS = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax", "LBFGS", "Adadelta")


def wraps(script: Script) -> list[tuple[ast.expr, ast.Call]]:
    """Return (name, call) of each model that is wrapped by hand."""
    found = []
    for target, value in script.assigned:
        calls = [c for c in ast.walk(value) if isinstance(c, ast.Call) and last_name(c.func) in WRAPPERS and c.args]
        found += [(target, call) for call in calls[:1]]
    return found


def call_wrapper(script: Script) -> Iterator[Candidate]:
    """Call the wrapper in training, and not what it wraps."""
    inner: dict[str, str] = {}
    for target, call in wraps(script):
        wrapped = ast.unparse(call.args[0])
        if wrapped != ast.unparse(target):
            inner[wrapped] = ast.unparse(target)
        for other, value in script.assigned:
            if ast.unparse(value) == wrapped or ast.unparse(other) == wrapped:
                inner.setdefault(ast.unparse(other), ast.unparse(target))
                if isinstance(value, ast.Name):
                    inner.setdefault(value.id, ast.unparse(target))
        inner.pop(ast.unparse(target), None)
    for target, value in script.assigned:
        of_wrapper = [n for n in ast.walk(value) if isinstance(n, ast.Attribute) and n.attr == "module"]
        if of_wrapper:
            inner[ast.unparse(target)] = script.text(of_wrapper[0].value)
    inner = {name: wrapper for name, wrapper in inner.items() if name != wrapper}
    edits = []
    for loop in script.batch_loops:
        for call in script.calls(within=loop):
            name = ast.unparse(call.func)
            if name.endswith(".module"):
                edits.append(replace(script.source, call.func, name[: -len(".module")]))
            elif name in inner:
                edits.append(replace(script.source, call.func, inner[name]))
    if edits:
        yield Candidate("compute the loss by the wrapper", tuple(dict.fromkeys(edits)))
    for call in script.calls():
        outer = script.source.parents[call]
        given = [a for a in call.args if isinstance(a, ast.Attribute) and a.attr == "module"]
        if given and isinstance(outer, ast.Assign) and ast.unparse(outer.targets[0]) == ast.unparse(given[0].value):
            yield Candidate(
                "keep the wrapper: it was replaced by what it wraps",
                (replace(script.source, outer, script.text(call)),),
            )


def wrap_model(script: Script) -> Iterator[Candidate]:
    """Wrap each model that an optimizer trains."""
    done = {ast.unparse(target) for target, _ in wraps(script)}
    inside = {ast.unparse(call.args[0]) for _, call in wraps(script)}
    for optimizer in script.calls(*OPTIMIZERS):
        for call in script.calls("parameters", within=optimizer):
            if not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Name):
                continue
            name = call.func.value.id
            made = [t for t, _ in script.assigned if ast.unparse(t) == name]
            if name in done or name in inside or not made:
                continue
            place = script.statement(optimizer)
            if script.runtime:
                edit = insert_before(script.source, place, [f"{name} = {script.runtime}.distribute_model({name})"])
                yield Candidate(f"wrap {name}", (edit,))
                continue
            word = _known(script) or "torch.nn.parallel.DistributedDataParallel"
            near = [script.statement(c) for _, c in wraps(script) if script.statement(c).lineno < place.lineno]
            if near and isinstance(script.source.parents[near[-1]], ast.If):
                edit = insert_after(script.source, near[-1], [f"{name} = {word}({name})"])
            else:
                lines = [f"if {script.is_distributed(place)}:", f"    {name} = {word}({name})"]
                edit = insert_before(script.source, place, lines)
            yield Candidate(f"wrap {name} in DistributedDataParallel", script.with_imports([edit]))


def _known(script: Script) -> str:
    """Return the name by which a file knows DistributedDataParallel."""
    for node in script.source.nodes.of(ast.ImportFrom):
        for alias in node.names:
            if alias.name == "DistributedDataParallel":
                return alias.asname or alias.name
    return ""


def wrap_again(script: Script) -> Iterator[Candidate]:
    """Wrap again where parameters begin to train after the model was wrapped."""
    for call in script.calls("requires_grad_"):
        given = ast.unparse(call.args[0]) if call.args else "True"
        made = [(t, c) for t, c in wraps(script) if c.lineno < call.lineno]
        if given != "True" or not made or not script.loops_around(call):
            continue
        target, wrap = made[-1]
        name = script.text(target)
        loops = [loop for loop in script.loops_around(call) if loop not in script.epoch_loops]
        place = loops[-1] if loops else script.statement(call)
        args = [f"{name}.module", *(script.text(one) for one in [*wrap.args[1:], *wrap.keywords])]
        lines = [f"if {script.is_distributed(place)}:", f"    {name} = {script.text(wrap.func)}({', '.join(args)})"]
        yield Candidate("wrap the model again once more of it trains", (insert_after(script.source, place, lines),))


def draw_before_wrapping(script: Script) -> Iterator[Candidate]:
    """Draw weights before the model is wrapped, and give all ranks those of rank 0."""
    for target, wrap in wraps(script):
        statement = script.statement(wrap)
        name = ast.unparse(target)
        place = statement
        outer = script.source.parents[statement]
        while isinstance(outer, ast.If):
            place, outer = outer, script.source.parents[outer]
        for call in script.calls("apply", "reset_parameters", "init_weights"):
            own = script.statement(call)
            is_its = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value).split(".")[0] == name
            if is_its and own.lineno > wrap.lineno and script.function_of(call) is script.function_of(wrap):
                edits = (insert_before(script.source, place, lines_of(script, own)), delete_or_cut(script, own))
                yield Candidate("draw the weights before the model is wrapped", edits)
    yield from broadcast_weights(script)


def broadcast_weights(script: Script) -> Iterator[Candidate]:
    """Give all ranks the weights of rank 0 before the optimizer is made."""
    for function in script.source.nodes.of(ast.FunctionDef):
        sends = [c for c in script.calls("broadcast", within=function) if "parameters" in ast.unparse(function)]
        uses = [c for c in script.calls(function.name) if c.args] if sends else []
        for optimizer in script.calls(*OPTIMIZERS) if sends and not uses else ():
            models = [c for c in script.calls("parameters", within=optimizer) if isinstance(c.func, ast.Attribute)]
            known = {"size": script.world_size(optimizer), "world_size": script.world_size(optimizer)}
            names = [a.arg for a in function.args.args[1:]]
            more = [
                known.get(a, script.rank(optimizer) if a == "rank" else script.world_size(optimizer)) for a in names
            ]
            for call in models[:1]:
                model = script.text(call.func.value)  # type: ignore[attr-defined]
                text = f"{function.name}({', '.join([model, *more])})"
                yield Candidate(
                    "give all ranks the weights of rank 0",
                    (insert_before(script.source, script.statement(optimizer), [text]),),
                )
    for optimizer in script.calls(*OPTIMIZERS):
        for call in script.calls("parameters", within=optimizer):
            place = script.statement(optimizer)
            if not isinstance(call.func, ast.Attribute) or script.runtime:
                continue
            dist, name = script.dist or "dist", script.text(call.func.value)
            lines = [
                f"if {script.is_distributed(place)}:",
                f"    for tensor in {name}.state_dict().values():",
                f"        {dist}.broadcast(tensor, 0)",
            ]
            edit = insert_before(script.source, place, lines)
            yield Candidate("give all ranks the weights of rank 0", script.with_imports([edit]))


def average_parameter(script: Script) -> Iterator[Candidate]:
    """Average the gradients that no wrapper averages, before the optimizer steps."""
    for step in _steps(script):
        optimizer = script.text(step.func.value)  # type: ignore[attr-defined]
        place = script.statement(step)
        dist = script.dist or ("torch.distributed" if script.runtime else "dist")
        world, active = script.world_size(place), script.is_distributed(place)
        free = [
            ast.unparse(t)
            for t, v in script.assigned
            if isinstance(v, ast.Call) and last_name(v.func) == "Parameter" and "self." not in ast.unparse(t)
        ]
        names = [n for n in free if n.split(".")[0] in _visible(script, place)]
        for name in names:
            lines = [
                f"if {active}:",
                f"    {dist}.all_reduce({name}.grad)",
                f"    {name}.grad /= {world}",
            ]
            yield Candidate(
                f"average the gradient of {name}", script.with_imports([insert_before(script.source, place, lines)])
            )
        lines = [
            f"if {active}:",
            f"    for group in {optimizer}.param_groups:",
            '        for weight in group["params"]:',
            "            if weight.grad is not None:",
            f"                {dist}.all_reduce(weight.grad)",
            f"                weight.grad /= {world}",
        ]
        edits = [insert_before(script.source, place, lines)]
        if dist == "torch.distributed" and "torch" not in _visible(script, place):
            edits.insert(0, import_edit(script.source, "import torch"))
        yield Candidate("average the gradients of all parameters before the step", script.with_imports(edits))


def _steps(script: Script) -> list[ast.Call]:
    return [
        call
        for call in script.calls("step")
        if isinstance(call.func, ast.Attribute)
        and "sched" not in ast.unparse(call.func.value)
        and not call.args
        and script.loops_around(call)
    ]


def _visible(script: Script, place: ast.AST) -> set[str]:
    function = script.function_of(place)
    names = {t.id for t, _ in script.assigned if isinstance(t, ast.Name) and script.function_of(t) is function}
    arguments = getattr(function, "args", None)
    imported = {(a.asname or a.name).split(".")[0] for n in script.source.nodes.of(ast.Import) for a in n.names}
    return names | imported | ({a.arg for a in arguments.args} if arguments else set())


def synchronise_last(script: Script) -> Iterator[Candidate]:
    """Synchronise exactly in the batch that ends with optimizer.step(): one test for both."""
    for step in _steps(script):
        guards = [n for n in script.source.ancestors(step) if isinstance(n, ast.If)]
        inner = [g for g in guards if script.loops_around(g) == script.loops_around(step)]
        if not inner:
            continue
        test = script.text(inner[0].test)
        for call in script.calls("gradient_sync"):
            enabled = keyword_of(call, "enabled")
            if enabled is not None and script.text(enabled.value) != test:
                yield Candidate(
                    "synchronise in the batch that ends with the step", (replace(script.source, enabled.value, test),)
                )
        for target, value in script.assigned:
            if isinstance(target, ast.Attribute) and target.attr == "require_backward_grad_sync":
                yield Candidate(
                    "synchronise in the batch that ends with the step", (replace(script.source, value, test),)
                )
        for call in script.calls("no_sync"):
            for outer in script.source.ancestors(call):
                if isinstance(outer, (ast.IfExp, ast.If)):
                    is_body = any(
                        call in ast.walk(p) for p in (outer.body if isinstance(outer.body, list) else [outer.body])
                    )
                    text = f"not ({test})" if is_body else test
                    yield Candidate(
                        "leave no_sync out in the batch that ends with the step",
                        (replace(script.source, outer.test, text),),
                    )
                    break


def synchronise_once(script: Script) -> Iterator[Candidate]:
    """Put forward and backward of a micro batch under gradient_sync."""
    rd = script.runtime
    if not rd:
        return
    for call in script.backwards:
        loops = script.loops_around(call)
        statement: ast.stmt = script.statement(call)
        while script.source.parents[statement] not in loops:
            statement = script.source.parents[statement]  # type: ignore[assignment]
        block = script.block(statement)
        position = block.index(statement)
        forward = next((s for s in reversed(block[:position]) if _computes(script, s, call)), None)
        guards = [g for s in _steps(script) for g in script.source.ancestors(s) if isinstance(g, ast.If)]
        models = [ast.unparse(c.args[0]) for c in script.calls("gradient_sync") if c.args]
        if forward is None or not guards:
            continue
        model = models[0] if models else _model_called(script, forward)
        header = f"with {rd}.strategies.gradient_sync({model}, enabled={script.text(guards[0].test)}):"
        span = block[block.index(forward) : position + 1]
        if isinstance(statement, ast.With):
            source = script.source
            start = source.span(forward)[0]
            first = source.span(span[0])[0]
            end = source.span(statement)[1]
            body = unwrapped(script, statement)
            text = source.text[first : source.span(statement)[0]] + body.text
            indent = indentation(source, forward)
            step = indent_step(source, indent)
            lines = (indent + text).splitlines()
            whole = source.newline.join(step + line if line.strip() else line for line in lines)
            yield Candidate(
                "put forward and backward under gradient_sync",
                (Edit(source, start, end, f"{header}{source.newline}{whole}"),),
            )
        else:
            yield Candidate("put forward and backward under gradient_sync", tuple(under(script, span, header)))


def _computes(script: Script, statement: ast.stmt, backward: ast.Call) -> bool:
    loss = {part.id for part in ast.walk(backward.func) if isinstance(part, ast.Name)}
    stored = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return bool(loss & stored)


def _model_called(script: Script, forward: ast.stmt) -> str:
    names = [ast.unparse(c.func) for c in script.calls(within=forward) if isinstance(c.func, ast.Name)]
    return next((name for name in names if "model" in name or "net" in name), "model")


def clip_before_step(script: Script) -> Iterator[Candidate]:
    """Clip the synchronised gradients of the whole step."""
    for call in script.calls("clip_grad_norm_", "clip_grad_value_"):
        own = script.statement(call)
        for step in _steps(script):
            place = script.statement(step)
            if own not in script.block(place) and script.loops_around(step)[:1] == script.loops_around(call)[:1]:
                edits = (insert_before(script.source, place, lines_of(script, own)), delete_or_cut(script, own))
                yield Candidate("clip right before the step", edits)
    for target, value in script.assigned:
        is_norm = isinstance(value, ast.Call) and last_name(value.func) == "norm" and isinstance(target, ast.Name)
        if is_norm and not script.runtime and any(loop for loop in script.loops_around(target)):
            name, dist = script.text(target), script.dist or "dist"
            lines = [
                f"if {script.is_distributed(target)}:",
                f"    {name} = {name}.square()",
                f"    {dist}.all_reduce({name})",
                f"    {name} = {name}.sqrt()",
            ]
            edit = insert_after(script.source, script.statement(target), lines)
            yield Candidate("clip by the norm of all ranks' parts", script.with_imports([edit]))


def unused_parameters(script: Script) -> Iterator[Candidate]:
    for call in script.calls(*WRAPPERS, "distribute_model"):
        if isinstance(script.source.parents.get(call), (ast.Assign, ast.IfExp, ast.Return, ast.Tuple)):
            edits = with_keyword(script, call, "find_unused_parameters", "True")
            yield Candidate("let the wrapper find parameters without a gradient", tuple(edits))


def batchnorm(script: Script) -> Iterator[Candidate]:
    for call in script.calls("distribute_model"):
        keyword = keyword_of(call, "sync_batchnorm")
        if keyword is not None:
            yield Candidate("synchronise BatchNorm", (without_argument(script, call, keyword),))
    for call in script.calls(*WRAPPERS):
        if call.args and "convert_sync_batchnorm" not in script.text(call):
            text = f"torch.nn.SyncBatchNorm.convert_sync_batchnorm({script.text(call.args[0])})"
            yield Candidate("synchronise BatchNorm", (replace(script.source, call.args[0], text),))


def buffers(script: Script) -> Iterator[Candidate]:
    for call in script.calls(*WRAPPERS, "distribute_model"):
        given = with_keyword(script, call, "broadcast_buffers", "False")
        yield Candidate("leave the buffers as they are between forward passes", tuple(given))
    for call in script.calls("broadcast_buffers"):
        own = script.statement(call)
        block = script.block(own)
        if block.index(own):
            edits = (
                insert_before(script.source, block[block.index(own) - 1], lines_of(script, own)),
                delete_or_cut(script, own),
            )
            yield Candidate("synchronise the buffers before the first forward pass", edits)


def wrapper_attribute(script: Script) -> Iterator[Candidate]:
    """Reach the model's own attributes through its wrapper."""
    rd = script.runtime
    wrapped = {ast.unparse(t) for t, _ in wraps(script)}
    for node in script.source.nodes.of(ast.IfExp):
        if isinstance(node.body, ast.Attribute) and node.body.attr == "module" and rd:
            text = f"{rd}.unwrap_model({script.text(node.orelse)})"
            yield Candidate("take what is wrapped with unwrap_model", (replace(script.source, node, text),))
    for call in script.calls():
        function = call.func
        own = isinstance(function, ast.Attribute) and function.attr.startswith(
            ("forward_", "encode", "predict", "generate")
        )
        if own and isinstance(function, ast.Attribute):
            name = script.text(function.value)
            if rd:
                text = f"{rd}.unwrap_model({name})"
            elif name in wrapped:
                text = f'getattr({name}, "module", {name})'
            else:
                continue
            yield Candidate(f"call {function.attr} of what is wrapped", (replace(script.source, function.value, text),))
