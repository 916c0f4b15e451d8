"""RF302 loss-averaged-per-rank: a mean over the elements that count, of which processes have different numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import argument_for
from retrofit.analysis.edits import Edit, surround
from retrofit.analysis.flow.sources import Origin
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.rules.catalog import CATALOG
from retrofit.rules.edits.chosen_means import chosen_mean
from retrofit.rules.edits.tests_together import tests_together
from retrofit.rules.finding import Finding, found
from retrofit.rules.loss.repeated_loaders import HELP, MESSAGE, repeated_next_to_others
from retrofit.training import Project
from retrofit.training.data.batch_values import BATCH, GRADIENT
from retrofit.training.losses.criteria.ignored_labels import counts_labels, ignores_padding
from retrofit.training.losses.criteria.library import token_losses
from retrofit.training.losses.divisions import COUNT, RATIO, SIZE, SUM, UNKNOWN, Division, without_guard
from retrofit.training.losses.flow import loss_parts
from retrofit.training.losses.gathering.gathered import is_of_whole_rows
from retrofit.training.losses.reductions.coupling import couplings, is_made_global, obstacle
from retrofit.training.losses.reductions.kinds import GLOBAL
from retrofit.training.losses.reductions.library import COUNTED_MEAN, library_reduction
from retrofit.training.losses.reductions.reduction import reader_of
from retrofit.training.losses.rows.chosen_elements import is_mean_of_chosen, is_of_chosen
from retrofit.training.losses.rows.padded_rows import is_over_padding, is_reduced_with_padding
from retrofit.training.losses.rows.same_padding import needs_same_padding
from retrofit.training.losses.rows.uneven_rows import has_uneven_rows
from retrofit.training.losses.terms import MEAN, Term, loss_expressions, terms_at
from retrofit.training.torch_api.losses import COUNTED, ELEMENTWISE
from retrofit.training.torch_api.runtime import GLOBAL_REDUCTIONS

RULE = CATALOG["RF302"]
HELP_COUNT = "divide by the number of all processes: loss_sum / rd.loss.rank_share(rd.loss.batch_count(valid))"
HELP_CHOSEN = "let each element of all processes count the same: rd.loss.chosen_mean(x), where all of them come to it"
HELP_LIBRARY = (
    "ask for the sum and divide it by the number of all processes: "
    "crf(x, tags, mask, reduction='sum') / rd.loss.rank_share(rd.loss.batch_count(mask.sum()))"
)
OF_TOKENS = "the model's loss is the mean over the tokens of this process's batch whose labels are not -100"
HELP_TOKENS = (
    "give the mean of each process its weight: n = (labels != -100).sum(), of labels[..., 1:] for a causal model; "
    "loss = loss * n / rd.loss.rank_share(rd.loss.batch_count(n))"
)
PADDED = (
    "samples are as long as the longest one of this process's share: what is taken over their positions counts other "
    "padding"
)
HELP_PADDED = (
    "pad to one length that is fixed, or leave the padding out (ignore_index, a mask); where it is over samples, and "
    "the model does not see the padding, nothing has to be done"
)
HELP_NONLINEAR = (
    "processes average the values of a function of their means, which is not that of the mean over the whole batch: "
    "apply it to each sample, or bring the mean of all processes together with gradients (torch.distributed.nn)"
)
INVALID = [
    """\
criterion = nn.CrossEntropyLoss(ignore_index=255)
for images, labels in loader:
    loss = criterion(model(images), labels)
    loss.backward()
""",
    """\
for images, labels in loader:
    errors = (model(images) - labels) ** 2
    chosen = errors[labels.abs() > 1]
    loss = errors[labels > 0].mean() + torch.mean(errors[labels < 0], 0).sum()  # RF302
    loss = loss + chosen.mean(dim=0).sum()  # RF302
    loss.backward()
""",
    # the padding counts, and the samples do not come first, so that a batch cannot be made whole and split
    """\
def collate(batch):
    return torch.nn.utils.rnn.pad_sequence(batch)


for inputs in DataLoader(dataset, batch_size=4, collate_fn=collate):
    output = model(inputs)
    loss = nn.functional.l1_loss(output, inputs)  # RF302
    loss = loss + (output * (inputs != 0)).mean()  # RF302
    loss.backward()
""",
    """\
def collate(batch):
    longest = max(len(tokens) for tokens in batch)
    return torch.stack([nn.functional.pad(tokens, (0, longest - len(tokens))) for tokens in batch], 1)


criterion = nn.CrossEntropyLoss()
for tokens in DataLoader(dataset, batch_size=4, collate_fn=collate):
    loss = criterion(model(tokens).view(-1, 9), tokens.view(-1))  # RF302
    loss.backward()
""",
    # also in a loss that the script computes itself
    """\
def collate(batch):
    lengths = torch.tensor([tokens.numel() for tokens in batch], 1)
    rows = torch.zeros(len(batch), int(lengths.max()), dtype=torch.long)
    for row, tokens in zip(rows, batch):
        row[: len(tokens)] = tokens
    return rows.t()


for tokens in DataLoader(dataset, batch_size=4, collate_fn=collate):
    scores = model(tokens).log_softmax(-1).gather(2, tokens.unsqueeze(2)).squeeze(2)
    loss = -scores.sum(1).mean()  # RF302
    loss.backward()
""",
    """\
def collate(batch):
    return torch.nn.utils.rnn.pad_sequence(batch)


for inputs in DataLoader(dataset, batch_size=4, collate_fn=collate):
    loss = rd.loss.sum_loss(nn.functional.mse_loss(model(inputs), inputs, reduction="sum"))  # RF302
    loss.backward()
""",
    # so does that of a tokenizer
    """\
criterion = nn.CrossEntropyLoss()
for texts in loader:
    tokens = tokenizer(texts, padding=True, return_tensors="pt").input_ids
    output = model(tokens).view(-1, 9)
    loss = criterion(output, tokens.flatten())  # RF302
    loss.backward()
""",
]
VALID = [
    """\
criterion = rd.loss.distribute_criterion(nn.CrossEntropyLoss(ignore_index=255))
for images, labels in loader:
    loss = criterion(model(images), labels)
    loss.backward()
""",
    # means over all elements, whatever the masks
    """\
for images, labels in loader:
    errors = (model(images) - labels) ** 2
    weight = torch.tensor([1.0, 2.0])[(labels > 0).long()]
    loss = errors.mean() + torch.where(labels > 0, errors, labels).mean() + (weight * errors).mean()
    factor = torch.ones(2)[torch.where(labels > 0, 1, 0)]
    loss = loss + errors[:, [0]].mean() + (factor * errors).mean()
    loss = loss + torch.stack([errors[k][labels[k] > 0].mean() for k in range(len(labels))]).mean()
    loss.backward()
""",
    # padding that counts nothing, or that is the same everywhere
    """\
def collate(batch):
    return torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)


criterion = rd.loss.distribute_criterion(nn.CrossEntropyLoss(ignore_index=0))
for tokens in DataLoader(dataset, batch_size=4, collate_fn=collate):
    loss = criterion(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
""",
    """\
def collate(batch):
    return torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)


for tokens in DataLoader(dataset, batch_size=4, collate_fn=collate):
    scores = model(tokens).log_softmax(-1).gather(2, tokens.unsqueeze(2)).squeeze(2)
    mask = tokens != 0
    loss = -(scores * mask).sum(1).mean()
    loss.backward()
""",
    # texts that are as long everywhere; a label for each of them
    """\
criterion = nn.CrossEntropyLoss()
for texts, labels in loader:
    tokens = tokenizer(texts, padding="max_length", max_length=128, return_tensors="pt").input_ids
    loss = criterion(model(tokens).view(-1, 9), tokens.view(-1))
    loss.backward()
""",
    """\
criterion = nn.CrossEntropyLoss()
for texts, labels in loader:
    loss = criterion(model(**tokenizer(texts, padding="longest", return_tensors="pt")), labels)
    loss.backward()
""",
    # these count nothing
    """\
criterion = nn.CrossEntropyLoss(**{"label_smoothing": 0.1})
other = nn.CrossEntropyLoss(torch.ones(2), size_average=False)
for images, labels in loader:
    loss = criterion(model(images), labels) + rd.loss.sum_loss(other(model(images), labels))
    loss.backward()
""",
]


def find(project: Project) -> Iterator[Finding]:
    seen: set[ast.AST] = set()
    decided: list[tuple[ast.expr, Scope]] = []  # by tests of what a process counts
    token_calls: set[ast.AST] = set()
    before_tokens: set[Origin] = set()
    coupled = [(c.node, c.scope) for c in couplings(project) if c.function]
    made_global = {node for node, _ in coupled}
    parts = [loss_parts(project.analysis, path) for path in project.paths]
    nonlinear = {place for items in parts for place, is_linear in items.items() if not is_linear}
    shared = {term.builder for node, scope in nonlinear for term in terms_at(project.analysis, node, scope)}
    is_padded_apart = not needs_same_padding(project)
    nonlinear_nodes = {node for node, _ in nonlinear}
    for node, scope in (*_around_backward(project), *(place for items in parts for place in items), *coupled):
        if node in seen or is_of_whole_rows(project, node, scope):
            continue
        seen.add(node)
        if node in made_global and not is_mean_of_chosen(project, node, scope):
            continue
        terms = terms_at(project.analysis, node, scope)
        is_own = not _is_of_all_ranks(project, node, scope)
        if node in nonlinear_nodes and is_own and any(term.reduction == MEAN for term in terms):
            yield found(
                RULE,
                scope.source,
                node,
                "the loss is not a linear function of this rank's own mean",
                help=HELP_NONLINEAR,
            )
        elif counting := [term for term in terms if _counts(project, term)]:
            if _is_of_a_sample(project, node, scope):
                continue
            is_settled = not obstacle(project, node, scope, together=True)  # type: ignore[arg-type]
            edits = [e for term in counting if is_settled and term.builder not in shared for e in _edits(term)]
            decided += [(node, scope)] if edits else []  # type: ignore[list-item]
            yield found(RULE, scope.source, node, "the mean is over the elements that this process counts", edits)
            counting = [term for term in counting if is_padded_apart and not ignores_padding(project, term)]
            if any(is_over_padding(project, term) for term in counting):
                yield found(RULE, scope.source, node, PADDED, help=HELP_PADDED)
        elif any(is_over_padding(project, term) for term in terms) and not _is_of_a_sample(project, node, scope):
            if is_padded_apart:
                yield found(RULE, scope.source, node, PADDED, help=HELP_PADDED)
        elif not terms and is_mean_of_chosen(project, node, scope) and not _is_of_a_sample(project, node, scope):
            edits = chosen_mean(project, node, scope)
            decided += [(node, scope)] if edits else []  # type: ignore[list-item]
            message = "the mean is over the elements that are chosen from this process's batch"
            yield found(RULE, scope.source, node, message, edits, help=HELP_CHOSEN)
        elif not terms and _is_mean_of_library(project, node, scope):
            message = "the mean is over the tokens or frames of this process's batch that count"
            yield found(RULE, scope.source, node, message, help=HELP_LIBRARY)
        elif not terms and _is_reduced_with_own_padding(project, node, scope):
            yield found(RULE, scope.source, node, PADDED, help=HELP_PADDED)
        for call, where in token_losses(project.analysis, node, scope, before_tokens) if not terms else ():
            if call not in token_calls:
                token_calls.add(call)
                yield found(RULE, where.source, call, OF_TOKENS, help=HELP_TOKENS)
    for use in repeated_next_to_others(project) if not project.distribution.is_by_hand else ():
        yield found(RULE, use.scope.source, use.expression, MESSAGE, help=HELP)
    for division in project.divisions:
        place = (division.node, division.scope)
        is_global = is_made_global(project, division.divisor, division.scope) or is_of_whole_rows(project, *place)
        if not isinstance(division.node, ast.AugAssign):
            is_global = is_global or reader_of(project).kind(division.node, division.scope).parts == {GLOBAL}
        if division.is_in_loop or is_global:
            continue
        is_of_rows = division.kind == SIZE and has_uneven_rows(project)
        is_own = division.kind == UNKNOWN or (division.loss == SUM and (division.kind in (COUNT, RATIO) or is_of_rows))
        if division.loss == UNKNOWN or is_own:
            finding = _of_division(project, division)
            decided += [(division.divisor, division.scope)] if finding.edits else []
            yield finding
    yield from tests_together(project, decided, RULE, coupled)


def _around_backward(project: Project) -> Iterator[tuple[ast.AST, Scope]]:
    """Yield all nodes of the expressions that compute training losses, in the function of the backward call."""
    for path in project.paths:
        for expression, scope in loss_expressions(path):
            yield from ((node, scope) for node in walk(expression))


def _is_of_all_ranks(project: Project, node: ast.AST, scope: Scope) -> bool:
    """Return whether a mean is brought together over the ranks where it is taken: rd.loss.batch_mean(...)."""
    calls = (outer for outer in scope.source.ancestors(node) if isinstance(outer, ast.Call))
    return any(project.analysis.called(call, scope) & GLOBAL_REDUCTIONS for call in calls)


def _is_of_a_sample(project: Project, node: ast.AST, scope: Scope) -> bool:
    """Return whether a mean is taken for one sample after the other, over its own elements."""
    around = project.batch_values.loops_around(node, scope)
    samples = reader_of(project).samples
    if BATCH in around and GRADIENT not in around:
        return samples.may_be_within(node, scope)
    return samples.is_within(node, scope)


def _is_reduced_with_own_padding(project: Project, node: ast.AST, scope: Scope) -> bool:
    """Return whether a mean or a sum is over samples that are as long as the longest one of this process."""
    is_padded = not needs_same_padding(project) and is_reduced_with_padding(project, node, scope)
    return is_padded and not _is_of_a_sample(project, node, scope)


def _is_mean_of_library(project: Project, node: ast.AST, scope: Scope) -> bool:
    """Return whether this is a loss of a library that divides by what counts in its batch."""
    return isinstance(node, ast.Call) and library_reduction(project.analysis, node, scope) == COUNTED_MEAN


def _counts(project: Project, term: Term) -> bool:
    is_known = term.reduction == MEAN or not project.distribution.is_by_hand  # the runtime looks at it
    is_counted = is_known and counts_labels(project, term)
    return is_counted or is_of_chosen(project, term) or _is_of_uneven_rows(project, term)


def _is_of_uneven_rows(project: Project, term: Term) -> bool:
    """Return whether a mean is over rows of which the ranks have different numbers: the nodes of their graphs."""
    if term.reduction != MEAN or term.name not in COUNTED | ELEMENTWISE or not has_uneven_rows(project):
        return False
    parts = [argument_for(term.call, ["input", "target"], name) for name in ("input", "target")]
    given = [project.batch_values.sources_of(part, term.scope) for part in parts if part is not None]
    return not project.distribution.is_by_hand and any(GRADIENT in sources for sources in given)


def _edits(term: Term) -> list[Edit]:
    """Return edits at the place where the criterion is made, or at the function that is called."""
    if not term.can_be_wrapped:
        return []
    node = term.builder.func if term.builder is term.call else term.builder
    return surround(term.builder_scope.source, node, "rd.loss.distribute_criterion(", ")")


def _of_division(project: Project, division: Division) -> Finding:
    """Return what to do about a sum over the elements of a process that is divided by something of them."""
    source = division.scope.source
    if division.kind == RATIO:
        message = "sums over this process's batch are divided by each other: processes average the ratios"
        return found(RULE, source, division.node, message, help=HELP_NONLINEAR)
    if division.kind == UNKNOWN:
        message = "the loss is divided by something of this process's batch: processes average the quotients"
        return found(RULE, source, division.node, message, help=HELP_NONLINEAR)
    edits: list[Edit] = []
    place = (
        _place_of(project, division)
        if division.loss == SUM
        and division.is_alone
        and not project.distribution.is_by_hand
        and not obstacle(project, division.divisor, division.scope, together=True)
        else None
    )
    if place is not None and place[0] is place[1]:
        edits += surround(source, place[0], "rd.loss.rank_share(rd.loss.batch_count(", "))")
    elif place is not None:
        edits += surround(source, place[0], "rd.loss.rank_share(", ")") + surround(
            source, place[1], "rd.loss.batch_count(", ")"
        )
    return found(RULE, source, division.node, "the loss is divided by this process's own count", edits, help=HELP_COUNT)


def _place_of(project: Project, division: Division) -> tuple[ast.expr, ast.expr] | None:
    """Return the divisor and the count in it, where it is made if something there keeps it from being 0."""
    if not isinstance(division.count, ast.Name):
        return division.divisor, division.count
    bindings = division.scope.bindings.get(division.count.id, [])
    made = [binding.value for binding in bindings if binding.value is not None]
    if all(without_guard(value) is value for value in made):
        return division.divisor, division.count
    others = own_nodes(division.scope.node).of(ast.Name)
    reads = [node for node in others if node.id == division.count.id and isinstance(node.ctx, ast.Load)]
    divisors = {other.divisor for other in project.divisions if other.loss == SUM and other.is_settled}
    is_alone = len(bindings) == len(made) == 1 and divisors.issuperset(reads)
    return (made[0], without_guard(made[0])) if is_alone else None
