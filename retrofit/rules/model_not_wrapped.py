"""RF209 model-not-wrapped: nothing averages the gradients."""

from __future__ import annotations

from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.edits import insert_after
from retrofit.project.placement import after_home

from .finding import Finding, found

CODE = "RF209"
NAME = "model-not-wrapped"
WHY = "Each process changes its own copy of the model by the gradients of its own samples, and the copies drift apart."
HELP = "model = rd.distribute_model(model), once it is on its device"


def find(project: Project) -> Iterator[Finding]:
    for model in project.models:
        methods = {call.method for call in model.calls} - {"", "forward"}
        place = after_home(project.analysis, model.home, project.paths)
        call = model.calls[0]
        if place is None:
            refusal = f"{model.home} is set in several places, so none is behind all of them"
            yield found(CODE, call.scope.source, call.call, f"{model.home} is not wrapped", HELP, refusal=refusal)
            continue
        source, statement = place
        line = f"{model.home} = rd.distribute_model({model.home})"
        edits = [insert_after(source, statement, [line])]
        message = f"the gradients of {model.home} are not averaged over the processes"
        if methods and not {"", "forward"} & {call.method for call in model.calls}:
            refusal = f"{model.home} is trained through {', '.join(sorted(methods))} and not by calling it"
            yield found(CODE, source, statement, message, HELP, refusal=refusal)
            continue
        yield found(CODE, source, statement, message, HELP, edits)
