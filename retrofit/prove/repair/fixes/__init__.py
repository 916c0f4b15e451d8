"""Repairs by the code of the fault: functions that look for the mistake in a file and yield edits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ..script import Candidate, Script
from . import checkpoint, collectives, figures, files, launch, loss, model, randomness, samples

Repair = Callable[[Script], Iterator[Candidate]]

BY_CODE: Mapping[str, Sequence[Repair]] = {
    "RF101": (samples.set_epoch, samples.distribute_loader),
    "RF102": (samples.distribute_loader,),
    "RF103": (
        samples.same_sampler_seed,
        samples.stepped_slices,
        samples.distribute_loader,
        samples.shard_loader,
        randomness.common_seed,
    ),
    "RF104": (samples.shard_stream, samples.distribute_loader),
    "RF105": (samples.exact_evaluation, figures.sums_of_all_ranks),
    "RF106": (samples.distribute_loader, samples.even_shards),
    "RF107": (samples.distribute_loader, samples.batch_size),
    "RF108": (
        randomness.fixed_order,
        randomness.common_seed,
        samples.same_sampler_seed,
        model.draw_before_wrapping,
    ),
    "RF109": (randomness.own_streams, samples.distribute_loader),
    "RF111": (samples.exact_evaluation, figures.sums_of_all_ranks),
    "RF201": (model.call_wrapper, model.wrap_model, model.average_parameter),
    "RF202": (
        model.synchronise_last,
        model.wrap_again,
        model.clip_before_step,
        model.average_parameter,
    ),
    "RF203": (model.synchronise_once, figures.decided_by_all),
    "RF204": (model.unused_parameters,),
    "RF205": (model.buffers, model.batchnorm),
    "RF206": (model.batchnorm,),
    "RF207": (model.wrapper_attribute, model.call_wrapper),
    "RF209": (model.wrap_model, model.average_parameter),
    "RF210": (model.draw_before_wrapping,),
    "RF211": (model.average_parameter, model.wrap_model),
    "RF212": (model.wrap_again, model.draw_before_wrapping),
    "RF301": (loss.without_factor, loss.averaged_once),
    "RF302": (loss.selected_of_all, figures.decided_by_all),
    "RF303": (loss.gathered_with_gradient,),
    "RF304": (loss.rate,),
    "RF305": (loss.schedule,),
    "RF309": (loss.summed_statistics,),
    "RF401": (figures.sums_of_all_ranks, figures.decided_by_all),
    "RF402": (collectives.reached_by_all,),
    "RF403": (collectives.reached_by_all, figures.decided_by_all),
    "RF407": (figures.sums_of_all_ranks, figures.counted_axis),
    "RF501": (files.guarded,),
    "RF502": (checkpoint.unprefixed,),
    "RF503": (checkpoint.map_location,),
    "RF504": (files.made_after_group,),
    "RF505": (files.one_writer, files.guarded),
    "RF506": (figures.counted_axis,),
    "RF507": (checkpoint.restored, randomness.own_streams),
    "RF509": (files.one_name,),
    "RF601": (launch.local_rank,),
    "RF602": (launch.port,),
    "RF603": (launch.on_main_alone, files.one_writer),
}
# Where the cause is not known, by the check that shows the fault.
BY_CHECK: Mapping[str, Sequence[Repair]] = {
    "initial_state": (model.draw_before_wrapping, randomness.common_seed),
    "loss": (loss.averaged_once, loss.selected_of_all, loss.summed_statistics, model.clip_before_step),
    "gradients": (
        loss.averaged_once,
        loss.without_factor,
        model.clip_before_step,
        loss.gathered_with_gradient,
        loss.summed_statistics,
    ),
    "ranks_agree": (
        loss.averaged_once,
        model.wrap_model,
        model.call_wrapper,
        model.wrap_again,
        figures.decided_by_all,
        model.average_parameter,
    ),
    "parameters": (model.clip_before_step, loss.averaged_once, loss.without_factor, figures.decided_by_all),
    "global_batch": (figures.decided_by_all, samples.batch_size),
    "communication": (model.synchronise_once, figures.decided_by_all),
    "lr": (loss.rate, loss.schedule, figures.sums_of_all_ranks, figures.decided_by_all),
    "decisions": (figures.sums_of_all_ranks, figures.decided_by_all),
    "metrics": (figures.sums_of_all_ranks,),
    "logs": (figures.counted_axis, figures.sums_of_all_ranks),
    "evaluation": (samples.exact_evaluation,),
    "resume": (checkpoint.restored, randomness.own_streams),
    "split": (randomness.fixed_order, randomness.common_seed),
    "shards": (samples.same_sampler_seed, samples.distribute_loader, samples.shard_loader),
    "random_streams": (randomness.own_streams,),
    "single_writer": (files.guarded, files.one_name),
    "completes": (collectives.reached_by_all, files.made_after_group, files.one_name),
    "collectives": (collectives.reached_by_all,),
}
