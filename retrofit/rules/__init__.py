"""One file per hazard: what it is, why it is bad, how it is found, and the change that mends it."""

from __future__ import annotations

from retrofit.project import Project
from retrofit.training.distributed.frameworks import averages_gradients, find_framework

from . import (
    batch_in_shape,
    batch_per_process,
    batchnorm_per_rank,
    collective_on_some_ranks,
    data_parallel,
    device_literal,
    device_not_chosen,
    divided_by_setting,
    evaluation_not_exact,
    evaluation_order,
    evaluation_padded,
    evaluation_repeated,
    figure_not_reduced,
    figure_of_one_rank,
    gpu_count,
    hidden_state,
    in_batch_loss,
    iterable_dataset,
    learning_rate,
    loader_not_sharded,
    local_rank_flag,
    log_on_every_rank,
    loss_averaged,
    loss_couples_samples,
    loss_scaled,
    lr_scaled,
    mean_divided,
    metric_per_rank,
    model_not_wrapped,
    no_map_location,
    no_sync_ineffective,
    no_sync_wrong_step,
    not_convertible,
    parameter_not_averaged,
    port_hard_coded,
    process_group,
    prompt,
    random_state,
    reread,
    run_name,
    same_random_stream,
    sampler_replaced,
    save_on_every_rank,
    schedule_length,
    search_in_script,
    set_epoch_missing,
    setup_race,
    state_not_restored,
    step_on_error,
    sum_loss,
    two_forwards,
    uneven_batches,
    unused_parameters,
    visible_gpus,
    wrapper_attribute,
    wrapper_bypassed,
    wrapper_discarded,
    wrapper_prefix,
)
from .figures import found_figures
from .finding import Finding
from .placing import placed

__all__ = ["RULES", "Finding", "find_all", "find_hazards"]

# In this order: where two rules add lines at one place, those of the first come first.
RULES = {
    rule.CODE: rule
    for rule in (
        not_convertible,
        iterable_dataset,
        in_batch_loss,
        process_group,
        random_state,
        device_literal,
        gpu_count,
        data_parallel,
        model_not_wrapped,
        parameter_not_averaged,
        wrapper_attribute,
        loader_not_sharded,
        evaluation_repeated,
        evaluation_order,
        batch_in_shape,
        sum_loss,
        divided_by_setting,
        learning_rate,
        search_in_script,
        run_name,
        setup_race,
        prompt,
        save_on_every_rank,
        reread,
        no_map_location,
        state_not_restored,
        metric_per_rank,
        figure_not_reduced,
        figure_of_one_rank,
        step_on_error,
        log_on_every_rank,
        set_epoch_missing,
        sampler_replaced,
        evaluation_padded,
        uneven_batches,
        batch_per_process,
        same_random_stream,
        evaluation_not_exact,
        loss_scaled,
        loss_couples_samples,
        loss_averaged,
        mean_divided,
        lr_scaled,
        schedule_length,
        visible_gpus,
        hidden_state,
        wrapper_bypassed,
        wrapper_discarded,
        wrapper_prefix,
        no_sync_wrong_step,
        no_sync_ineffective,
        unused_parameters,
        two_forwards,
        batchnorm_per_rank,
        collective_on_some_ranks,
        local_rank_flag,
        port_hard_coded,
        device_not_chosen,
    )
}


# Joining, wrapping, sharding, and the rate for all processes: what Accelerate and its like do themselves.
OF_FRAMEWORKS = {
    rule.CODE
    for rule in (
        process_group, model_not_wrapped, parameter_not_averaged, loader_not_sharded, set_epoch_missing, learning_rate,
        same_random_stream, random_state, evaluation_repeated, device_not_chosen, data_parallel,
    )
}  # fmt: skip
LAST = (figure_not_reduced, figure_of_one_rank)  # which look at what the edits of the others leave


def find_all(project: Project) -> list[Finding]:
    """Return what every rule but the last finds in a project that is to be converted; where nothing trains, one alone.

    What the last ones find is in `figures.rewritten`.
    """
    return [*not_convertible.find(project), *_find_first(project)]


def find_hazards(project: Project) -> list[Finding]:
    """Return the hazards in a project, in one that is distributed already too."""
    findings = _find_first(project)
    return [*findings, *found_figures(project, findings)] if project.paths else []


def _find_first(project: Project) -> list[Finding]:
    if not project.paths:
        return []
    left_out = {not_convertible.CODE, *(rule.CODE for rule in LAST), *_done_otherwise(project)}
    hazards = (finding for code, rule in RULES.items() if code not in left_out for finding in rule.find(project))
    return placed(project, hazards)


def _done_otherwise(project: Project) -> set[str]:
    """Return the codes of what a framework, or the project itself, does in another way than the rules look for."""
    framework = find_framework(project.analysis)
    if framework is not None and framework.owns_all:
        return OF_FRAMEWORKS
    is_averaged = framework is not None or averages_gradients(project.analysis, project.in_batches)
    return {model_not_wrapped.CODE} if is_averaged else set()
