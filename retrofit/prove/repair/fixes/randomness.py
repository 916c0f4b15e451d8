"""Repairs of random numbers and orders: the same where ranks must agree, others where they must not."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import Edit, add_argument, insert_after, insert_before, replace

from ..script import Candidate, Script, keyword_of

# What seeds the generator of a library, by the words of the call.
SEEDS = {
    "torch.manual_seed": "torch",
    "torch.random.manual_seed": "torch",
    "np.random.seed": "numpy",
    "numpy.random.seed": "numpy",
    "random.seed": "python",
    "set_seed": "all",
    "seed_everything": "all",
    "fix_seed": "all",
    "seed_all": "all",
}
UNSEEDED = {  # what draws from a library's generator: the same with a generator of its own
    "random.shuffle": "random.Random(0).shuffle",
    "random.sample": "random.Random(0).sample",
    "random.choices": "random.Random(0).choices",
    "np.random.shuffle": "np.random.default_rng(0).shuffle",
    "np.random.permutation": "np.random.default_rng(0).permutation",
    "np.random.choice": "np.random.default_rng(0).choice",
    "numpy.random.permutation": "numpy.random.default_rng(0).permutation",
    "numpy.random.shuffle": "numpy.random.default_rng(0).shuffle",
}
WITH_GENERATOR = ("random_split", "randperm")
ITERATES = ("list", "tuple", "enumerate", "iter", "dict.fromkeys", "zip")
LISTS_FILES = ("os.listdir", "glob.glob", "glob.iglob", "os.scandir")


def library_of(call: ast.Call) -> str:
    words = ast.unparse(call.func)
    return SEEDS.get(words) or (SEEDS.get(words.rpartition(".")[2], "") if "manual_seed" not in words else "")


def seeds(script: Script) -> list[ast.Call]:
    """Return the calls that seed a library's generator for the whole process."""
    calls = [call for call in script.calls() if call.args and library_of(call)]
    return [call for call in calls if not isinstance(script.function_of(call), ast.Lambda)]


def common_seed(script: Script) -> Iterator[Candidate]:
    """Give all ranks one seed before weights and splits are drawn; seed by rank after that, where it was before."""
    for call in seeds(script):
        if script.mentions_rank(call.args[0]):
            edit = replace(script.source, call.args[0], script.without_rank(call.args[0]))
            yield Candidate("give all ranks one seed where weights and splits are drawn", (edit,))
            again = [loop for loop in script.epoch_loops if script.function_of(loop) is script.function_of(call)]
            for loop in again[:1]:
                later = insert_before(script.source, loop, [script.text(script.statement(call))])
                yield Candidate("seed by rank later, once weights and splits are drawn", (edit, later))


def fixed_order(script: Script) -> Iterator[Candidate]:
    """Sort what has no order of its own, and seed what is drawn before anything is seeded."""
    for node, text in _unordered(script):
        yield Candidate(f"sort {script.text(node)[:40]}", (replace(script.source, node, text),))
    for call in script.calls():
        words = ast.unparse(call.func)
        if words in UNSEEDED:
            edit = replace(script.source, call.func, UNSEEDED[words])
            yield Candidate(f"draw {words} with one seed on all ranks", (edit,))
        if last_name(call.func) in WITH_GENERATOR and keyword_of(call, "generator") is None:
            edits = add_argument(script.source, call, "generator=torch.Generator().manual_seed(0)")
            yield Candidate(f"draw {words} with one seed on all ranks", tuple(edits))
        if last_name(call.func) == "train_test_split" and keyword_of(call, "random_state") is None:
            yield Candidate(
                "split with one seed on all ranks", tuple(add_argument(script.source, call, "random_state=0"))
            )


def _unordered(script: Script) -> Iterator[tuple[ast.expr, str]]:
    """Yield the sets and folder listings whose order is used, sorted."""
    iterated: list[ast.expr] = [node.iter for node in script.source.nodes.of(ast.For)]
    iterated += [node.iter for node in script.source.nodes.of(ast.comprehension)]
    for call in script.calls():
        if ast.unparse(call.func) in ITERATES:
            iterated += call.args
    for node in iterated:
        made = [v for t, v in script.assigned if isinstance(node, ast.Name) and ast.unparse(t) == node.id]
        if _is_set(node) or any(_is_set(value) for value in made):
            yield node, f"sorted({script.text(node)})"
    for call in script.calls("listdir", "glob", "iglob", "rglob", "iterdir"):
        outer = script.source.parents[call]
        if not (isinstance(outer, ast.Call) and last_name(outer.func) == "sorted"):
            yield call, f"sorted({script.text(call)})"


def _is_set(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitOr, ast.BitAnd, ast.Sub)):
        return _is_set(node.left) or _is_set(node.right)
    is_call = isinstance(node, ast.Call) and ast.unparse(node.func) in ("set", "frozenset")
    return is_call or isinstance(node, (ast.Set, ast.SetComp))


def own_streams(script: Script) -> Iterator[Candidate]:
    """Give each rank random numbers of its own for augmentation, dropout and noise."""
    yield from _by_device(script)
    yield from _workers(script)
    yield from _restored(script)
    by_library: dict[str, ast.Call] = {}
    functions = {script.function_of(call) for call in seeds(script)}
    for call in seeds(script):
        by_library[library_of(call)] = call  # the last of each
    late = [call for call in by_library.values() if not script.mentions_rank(call.args[0])]
    edits = tuple(_plus_rank(script, call.args[0]) for call in late)
    counts = [sum(library_of(one) == library_of(call) for one in seeds(script)) for call in late]
    if late and (all(count > 1 for count in counts) or len(late) < len(by_library)):
        yield Candidate("seed by rank, once weights and splits are drawn", script.with_imports(edits))
    for place in _before_training(script):
        text = _streams_text(script, late or [*by_library.values()], place)
        if text:
            edit = insert_before(script.source, place, text)
            yield Candidate("seed by rank before the training begins", script.with_imports([edit]))
    if late and functions:
        yield Candidate("seed by rank", script.with_imports(edits))


def _by_device(script: Script) -> Iterator[Candidate]:
    for call in script.calls("set_seed"):
        uses_accelerate = any((n.module or "").startswith("accelerate") for n in script.source.nodes.of(ast.ImportFrom))
        if uses_accelerate and keyword_of(call, "device_specific") is None:
            edits = add_argument(script.source, call, "device_specific=True")
            yield Candidate("set_seed(..., device_specific=True)", tuple(edits))


def _plus_rank(script: Script, seed: ast.expr) -> Edit:
    text = script.text(seed)
    text = f"({text})" if isinstance(seed, (ast.IfExp, ast.BoolOp, ast.Compare, ast.Lambda)) else text
    return replace(script.source, seed, f"{text} + {script.rank(seed)}")


def _streams_text(script: Script, calls: list[ast.Call], place: ast.AST) -> list[str]:
    visible = {script.function_of(place), script.source.tree}
    known = [call for call in calls if script.function_of(call) in visible]
    if script.runtime:
        seed = script.text(known[-1].args[0]) if known else "0"
        return [f"{script.runtime}.random_state.split_random_streams({seed})"]
    lines = []
    for call in known:
        seed = script.without_rank(call.args[0])
        lines.append(f"{script.text(call.func)}({seed} + {script.rank(place)})")
    if not lines:
        lines = [f"torch.manual_seed({script.rank(place)})"]
    return list(dict.fromkeys(lines))


def _before_training(script: Script) -> list[ast.stmt]:
    """Return the places at which weights and splits are drawn and no training has begun."""
    places: list[ast.stmt] = []
    for loop in script.epoch_loops[:1]:
        function = script.function_of(loop)
        resumes = [
            script.statement(call)
            for call in script.calls("load", "load_checkpoint", "load_state")
            if script.function_of(call) is function and call.lineno < loop.lineno
        ]
        makes = [
            script.statement(call)
            for call in script.calls("SGD", "Adam", "AdamW", "RMSprop")
            if script.function_of(call) is function and call.lineno < loop.lineno
        ]
        places += makes[-1:] or resumes[:1] or [loop]
    return places


def _workers(script: Script) -> Iterator[Candidate]:
    """Let the function that seeds a loader's workers know the rank."""
    for call in script.calls("DataLoader"):
        keyword = keyword_of(call, "worker_init_fn")
        if keyword is None:
            continue
        function: ast.AST = keyword.value
        if isinstance(function, ast.Name):
            named = [n for n in script.source.nodes.of(ast.FunctionDef) if n.name == function.id]
            function = named[0] if named else function
        if isinstance(function, (ast.Lambda, ast.FunctionDef)):
            inner = [one for one in ast.walk(function) if isinstance(one, ast.Call) and one.args and library_of(one)]
            edits = [
                replace(script.source, one.args[0], f"{script.text(one.args[0])} + 1000 * {script.rank(one)}")
                for one in inner
                if not script.mentions_rank(one.args[0])
            ]
            if edits:
                yield Candidate("seed the loader's workers by rank", script.with_imports(edits))
        elif isinstance(function, ast.Attribute) and ast.unparse(function) in SEEDS:
            text = f"lambda worker: {script.text(function)}(worker + 1000 * {script.rank(call)})"
            edits = [replace(script.source, keyword.value, text)]
            yield Candidate("seed the loader's workers by rank", script.with_imports(edits))


def _restored(script: Script) -> Iterator[Candidate]:
    """Restore each rank's own random state, in the place of rank 0's."""
    for node in script.source.nodes.of(ast.Subscript):
        if isinstance(node.slice, ast.Constant) and node.slice.value == 0 and "rng" in ast.unparse(node.value):
            edit = replace(script.source, node.slice, script.rank(node))
            yield Candidate("restore each rank's own random state", (edit,))
    yield from _gathered_states(script)


def _gathered_states(script: Script) -> Iterator[Candidate]:
    """Save the random states of all ranks, where rank 0's alone is in the checkpoint."""
    if script.runtime:
        return
    reads = ("get_rng_state", "get_state", "getstate")
    saved = [
        (key, value)
        for node in script.source.nodes.of(ast.Dict)
        for key, value in zip(node.keys, node.values)
        if isinstance(key, ast.Constant) and isinstance(value, ast.Call) and last_name(value.func) in reads
    ]
    edits: list[Edit] = []
    lines: list[str] = []
    place = None
    for key, value in saved:
        loads = [
            node
            for node in script.source.nodes.of(ast.Subscript)
            if isinstance(node.slice, ast.Constant) and node.slice.value == key.value and isinstance(node.ctx, ast.Load)
        ]
        if not loads:
            return
        name = f"{key.value!s}_of_ranks"
        edits.append(replace(script.source, value, name))
        edits += [replace(script.source, node, f"{script.text(node)}[{script.rank(node)}]") for node in loads]
        place = place or _before_guard(script, value)
        world = script.world_size(value)
        lines += [
            f"{name} = [{script.text(value)}] * {world}",
            f"if {script.is_distributed(value)}:",
            f"    {script.dist or 'dist'}.all_gather_object({name}, {script.text(value)})",
        ]
    if place is not None:
        edits.append(insert_before(script.source, place, lines))
        yield Candidate("save and restore the random state of each rank", script.with_imports(edits))


def _before_guard(script: Script, node: ast.AST) -> ast.stmt:
    """Return the outermost branch by rank around a node, else its statement."""
    place = script.statement(node)
    for outer in script.source.ancestors(node):
        if isinstance(outer, ast.If) and script.mentions_rank(outer.test):
            place = outer
    return place


def after(script: Script, statement: ast.stmt, lines: list[str]) -> Edit:
    return insert_after(script.source, statement, lines)
