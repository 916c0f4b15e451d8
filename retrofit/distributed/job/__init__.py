"""A job in production: interruption, failure, restarts, run folders and logs per rank: `rd.job`."""

from ..failure.watchdog import JOB_HOOKS
from .failure import report_failure
from .interruption import Interruption
from .pending_sum import begin_sum, finish_sum
from .process_identity import own_identity
from .rank_logging import keep_in_rank_log, keep_rank_log_in, setup_rank_logging
from .restart import open_run, read_resumed
from .restart_store import own_store
from .run_lock import release_runs
from .stopped_ranks import end_silent
from .termination import watch_sigterm

__all__ = [
    "Interruption",
    "begin_sum",
    "finish_sum",
    "keep_rank_log_in",
    "open_run",
    "read_resumed",
    "report_failure",
    "setup_rank_logging",
]

JOB_HOOKS.own_store = own_store
JOB_HOOKS.identity = own_identity
JOB_HOOKS.watched = watch_sigterm
JOB_HOOKS.reported = keep_in_rank_log
JOB_HOOKS.end_silent = end_silent
JOB_HOOKS.leave = release_runs
