"""One file per hazard: what it is, why it is bad, how it is found, and the change that mends it."""

from __future__ import annotations

from collections.abc import Iterator

from retrofit.project import Project

from . import (
    batch_in_shape,
    batch_per_process,
    batchnorm_per_rank,
    collective_on_some_ranks,
    data_parallel,
    device_literal,
    device_not_chosen,
    evaluation_not_exact,
    evaluation_order,
    evaluation_padded,
    evaluation_repeated,
    hidden_state,
    in_batch_loss,
    iterable_dataset,
    learning_rate,
    loader_not_sharded,
    local_rank_flag,
    log_on_every_rank,
    loss_averaged,
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
    random_state,
    reread,
    run_name,
    same_random_stream,
    sampler_replaced,
    save_on_every_rank,
    schedule_length,
    set_epoch_missing,
    setup_race,
    state_not_restored,
    step_on_error,
    sum_loss,
    total_per_rank,
    two_forwards,
    uneven_batches,
    unused_parameters,
    visible_gpus,
    wrapper_attribute,
    wrapper_bypassed,
    wrapper_prefix,
)
from .finding import Finding

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
        data_parallel,
        model_not_wrapped,
        parameter_not_averaged,
        wrapper_attribute,
        loader_not_sharded,
        evaluation_repeated,
        evaluation_order,
        batch_in_shape,
        sum_loss,
        learning_rate,
        run_name,
        setup_race,
        save_on_every_rank,
        reread,
        no_map_location,
        state_not_restored,
        metric_per_rank,
        total_per_rank,
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
        loss_averaged,
        mean_divided,
        lr_scaled,
        schedule_length,
        visible_gpus,
        hidden_state,
        wrapper_bypassed,
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


def find_all(project: Project) -> Iterator[Finding]:
    """Yield what every rule finds in a project that is to be converted; where nothing trains, only that."""
    yield from not_convertible.find(project)
    yield from find_hazards(project)


def find_hazards(project: Project) -> Iterator[Finding]:
    """Yield the hazards in a project, in one that is distributed already too."""
    if project.paths:
        for rule in RULES.values():
            if rule is not not_convertible:
                yield from rule.find(project)
