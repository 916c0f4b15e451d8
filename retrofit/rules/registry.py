"""All rules in the order in which they add lines, and what they find in a project."""

from __future__ import annotations

from dataclasses import replace

from retrofit.training import Project
from retrofit.training.distributed.frameworks import averages_gradients, find_framework
from retrofit.training.model.models import kinds_of

from .catalog import CATALOG
from .collectives import (
    chosen_by_own_draw,
    collective_on_some_ranks,
    decided_by_own_clock,
    no_sync_ineffective,
    no_sync_wrong_step,
    step_skipped_on_error,
)
from .data import (
    batch_size_in_shape,
    batch_size_per_process,
    draw_not_split,
    iterable_not_sharded,
    loader_not_sharded,
    same_random_stream,
    sampler_replaced,
    set_epoch_missing,
    split_differs_by_rank,
    uneven_batches,
)
from .edits.at_run_time import is_refused_before, refused_where_needed
from .edits.resolve import placed
from .evaluation import (
    evaluation_drawn_per_rank,
    evaluation_not_exact,
    evaluation_order_per_rank,
    evaluation_padded,
    evaluation_repeated,
    figure_not_reduced,
    figure_of_one_rank,
    metric_per_rank,
)
from .evaluation.rewritten_figures import found_figures
from .files import (
    log_on_every_rank,
    no_map_location,
    prompt_on_every_rank,
    reread_before_written,
    run_name_differs,
    save_on_every_rank,
    setup_race,
    state_not_restored,
    wrapper_prefix_saved,
)
from .finding import Finding
from .launch import (
    device_not_chosen,
    device_shared,
    gpu_count_of_machine,
    local_rank_flag,
    not_convertible,
    port_hard_coded,
    process_group_missing,
    search_in_script,
    visible_gpus_set,
)
from .loss import (
    divided_by_batch_setting,
    in_batch_loss_per_rank,
    loss_averaged_per_rank,
    loss_couples_samples,
    loss_scaled_by_world_size,
    lr_not_scaled,
    lr_scaled,
    mean_divided_by_batch,
    rate_search_per_rank,
    schedule_length,
    summed_loss_averaged,
)
from .model import (
    batchnorm_not_synchronised,
    batchnorm_outside_wrapper,
    buffers_modified_in_place,
    data_parallel,
    gradient_hooked_per_rank,
    hidden_state_carried,
    model_not_wrapped,
    parameter_not_averaged,
    unused_parameters,
    weights_drawn_again,
    wrapper_attribute,
    wrapper_bypassed,
    wrapper_discarded,
)

# In this order: where two rules add lines at one place, those of the first come first.
RULES = {
    rule.RULE.code: rule
    for rule in (
        not_convertible,
        iterable_not_sharded,
        in_batch_loss_per_rank,
        process_group_missing,
        split_differs_by_rank,
        device_shared,
        gpu_count_of_machine,
        data_parallel,
        model_not_wrapped,
        parameter_not_averaged,
        weights_drawn_again,
        batchnorm_outside_wrapper,
        gradient_hooked_per_rank,
        wrapper_attribute,
        loader_not_sharded,
        draw_not_split,
        evaluation_repeated,
        evaluation_order_per_rank,
        evaluation_drawn_per_rank,
        batch_size_in_shape,
        summed_loss_averaged,
        divided_by_batch_setting,
        lr_not_scaled,
        rate_search_per_rank,
        search_in_script,
        run_name_differs,
        setup_race,
        prompt_on_every_rank,
        save_on_every_rank,
        reread_before_written,
        no_map_location,
        state_not_restored,
        metric_per_rank,
        figure_not_reduced,
        figure_of_one_rank,
        step_skipped_on_error,
        decided_by_own_clock,
        chosen_by_own_draw,
        log_on_every_rank,
        set_epoch_missing,
        sampler_replaced,
        evaluation_padded,
        uneven_batches,
        batch_size_per_process,
        same_random_stream,
        evaluation_not_exact,
        loss_scaled_by_world_size,
        loss_couples_samples,
        loss_averaged_per_rank,
        mean_divided_by_batch,
        lr_scaled,
        schedule_length,
        visible_gpus_set,
        hidden_state_carried,
        wrapper_bypassed,
        wrapper_discarded,
        wrapper_prefix_saved,
        no_sync_wrong_step,
        no_sync_ineffective,
        unused_parameters,
        buffers_modified_in_place,
        batchnorm_not_synchronised,
        collective_on_some_ranks,
        local_rank_flag,
        port_hard_coded,
        device_not_chosen,
    )
}

# What Accelerate and its like do themselves: the process group, wrapping, sharding, the learning rate of all ranks.
OF_FRAMEWORKS = {
    rule.RULE.code
    for rule in (
        process_group_missing,
        model_not_wrapped,
        parameter_not_averaged,
        loader_not_sharded,
        draw_not_split,
        set_epoch_missing,
        lr_not_scaled,
        same_random_stream,
        split_differs_by_rank,
        evaluation_repeated,
        device_not_chosen,
        data_parallel,
    )
}
LAST = (figure_not_reduced, figure_of_one_rank)  # which look at what the edits of the others leave


def find_all(project: Project) -> list[Finding]:
    """Return what every rule but the last finds in a project that is to be converted; where nothing trains, one alone.

    What the last ones find is in `rewritten_figures.rewritten`.
    """
    return [*not_convertible.find(project), *_find_first(project)]


def find_hazards(project: Project) -> list[Finding]:
    """Return the hazards in a project, in one that is distributed already too, with the remedy in its own API."""
    findings = _find_first(project)
    if not project.paths:
        return []
    findings += found_figures(project, findings)
    return findings if project.distribution.uses_runtime else [_in_torch(finding) for finding in findings]


def _in_torch(finding: Finding) -> Finding:
    """Return a finding with the remedy in plain torch, where it has the one of its rule."""
    rule = CATALOG[finding.code]
    return replace(finding, help=rule.in_torch) if finding.help == rule.remedy else finding


def _find_first(project: Project) -> list[Finding]:
    if not project.paths:
        return []
    left_out = {not_convertible.RULE.code, *(rule.RULE.code for rule in LAST), *_done_otherwise(project)}
    hazards = (finding for code, rule in RULES.items() if code not in left_out for finding in rule.find(project))
    left = (finding for finding in hazards if not (finding.kind and is_refused_before(project, finding)))
    return placed(project, refused_where_needed(project, left))


def _done_otherwise(project: Project) -> set[str]:
    """Return the codes of what a framework, or the project itself, does in another way than the rules look for."""
    framework = find_framework(project.analysis)
    if framework is not None and framework.owns_all:
        return OF_FRAMEWORKS
    kinds = [kind for model in project.models for kind in kinds_of(project.analysis, model)]
    classes = {base for kind in kinds for base in project.analysis.classes.mro(kind)}
    is_averaged = framework is not None or averages_gradients(project.analysis, project.in_batches, classes)
    return {model_not_wrapped.RULE.code} if is_averaged else set()
