"""Arguments that a function takes as one parameter: those of `*args` and `**options`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import CallSite, given_parameters
from retrofit.analysis.flow.keys import Keys
from retrofit.analysis.scopes import Scope

Place = tuple[ast.expr, Scope, Keys]  # an expression, and its entry that is meant


def further_arguments(site: CallSite, scope: Scope, name: str, path: Keys) -> Iterator[Place]:
    """Yield what a call gives to the entry at `path` of a function's `*args` or `**options`, of which `name` is one.

    All that may be in it, where the path does not say which entry is meant.
    """
    names, key, inner = given_parameters(scope), path[0] if path else None, path[1:]
    named = scope.node.args.kwarg  # type: ignore[union-attr]
    if named is not None and named.arg == name:
        for keyword, where in site.keywords:
            if keyword.arg is None:
                yield keyword.value, where, path
            elif keyword.arg not in names and key in (None, keyword.arg):
                yield keyword.value, where, inner
        return
    taken = len(names) - len(scope.node.args.kwonlyargs)  # type: ignore[union-attr]
    given = site.positional
    spread = next((place for place, (part, _) in enumerate(given) if isinstance(part, ast.Starred)), len(given))
    for place, (part, where) in enumerate(given):
        if isinstance(part, ast.Starred):
            own = (key + taken - place, *inner) if isinstance(key, int) and place == spread else (None, *inner)
            yield part.value, where, own
        elif place >= taken and (place > spread or not isinstance(key, int) or place == key + taken):
            yield part, where, inner
