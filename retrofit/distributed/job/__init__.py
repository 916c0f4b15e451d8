"""A job in production: interruption, failure, restarts, run folders and logs per rank: `rd.job`."""

from .failure import report_failure
from .interruption import Interruption
from .rank_logging import keep_rank_log_in, setup_rank_logging
from .restart import open_run, read_resumed

__all__ = [
    "Interruption",
    "keep_rank_log_in",
    "open_run",
    "read_resumed",
    "report_failure",
    "setup_rank_logging",
]
