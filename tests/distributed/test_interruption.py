"""SIGTERM and SIGINT as requests, with real signals."""

from __future__ import annotations

import os
import signal

import pytest

from retrofit.distributed import get_rank
from retrofit.distributed.job import Interruption


def test_no_signal_no_status():
    with Interruption() as interruption:
        assert interruption.received is None
        assert interruption.agreed_status() is None


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 0), (signal.SIGHUP, 129)],
    ids=["SIGTERM", "SIGINT", "SIGHUP"],
)
def test_a_signal_is_remembered_and_not_raised(number, status):
    with Interruption() as interruption:
        os.kill(os.getpid(), number)
        assert interruption.received is number
        assert interruption.agreed_status() == status
    assert interruption.agreed_status() == status, "the decision outlives the block"


def test_the_first_signal_counts():
    with Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    assert interruption.received is signal.SIGINT


def status_of_different_signals():
    with Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGTERM if get_rank() == 1 else signal.SIGINT)
        return interruption.agreed_status()


def test_a_preemption_of_one_rank_stops_all(ranks):
    assert ranks(2).run(status_of_different_signals) == [143] * 2


def test_a_sighup_that_nohup_ignores_stays_ignored():
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruption() as interruption:
            os.kill(os.getpid(), signal.SIGHUP)
            assert interruption.received is None
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_handlers_are_restored_also_after_an_error():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(KeyError), Interruption():
        assert signal.getsignal(signal.SIGTERM) != before[0]
        raise KeyError
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_ctrl_c_works_again_after_the_block():
    with Interruption():
        pass
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def steps_until_all_agree(signalled_rank, at_step):
    with Interruption() as interruption:
        for step in range(10):
            if get_rank() == signalled_rank and step == at_step:
                os.kill(os.getpid(), signal.SIGTERM)
            status = interruption.agreed_status()
            if status is not None:
                return step, status
    return None


def test_all_ranks_stop_at_the_same_step(ranks):
    assert ranks(2).run(steps_until_all_agree, 1, 4) == [(4, 143)] * 2


INTERRUPTED = """
import os, sys
import retrofit.distributed as rd
rd.setup_distributed()


def train():
    exec(compile("raise KeyboardInterrupt", os.__file__, "exec"), {})


try:
    train()
except KeyboardInterrupt as error:
    sys.excepthook(KeyboardInterrupt, error, error.__traceback__)
print(getattr(sys.excepthook, "__self__", None) is not None)
rd.cleanup_distributed()
print(getattr(sys.excepthook, "__self__", None) is not None)
"""


def test_an_interrupted_group_shows_one_line_and_no_traceback(launcher, tmp_path):
    (tmp_path / "train.py").write_text(INTERRUPTED)
    ended = launcher.run(tmp_path, "train.py", [], world_size=2)
    lines = [[line for line in output.splitlines() if "notice" not in line and line] for output in ended["outputs"]]
    assert lines[0][0].startswith("[rank 0/2] interrupted in train (") and "train.py:8)" in lines[0][0], ended
    assert lines[0][1:] == lines[1] == ["True", "False"], "a group has the hook as long as it lasts"
