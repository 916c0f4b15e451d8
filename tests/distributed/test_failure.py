"""A rank that fails ends the job: one traceback, and nobody is left waiting."""

from __future__ import annotations

import re
import time

import pytest
from run_program import run_python

from retrofit.distributed.job.failure import report_failure

PROGRAM = """
import torch
from retrofit.distributed import cleanup_distributed, get_rank, setup_distributed
from retrofit.distributed.collectives import reduce_mean
from retrofit.distributed.job.failure import report_failure


@report_failure
def main():
    setup_distributed()
    if get_rank() == 1:
        raise ValueError("rank one has had enough")
    reduce_mean(torch.ones(3))  # waits for a rank that will never come
    cleanup_distributed()


main()
"""


@pytest.mark.usefixtures("forked_python")
def test_a_failing_rank_ends_the_job_with_one_traceback(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    started = time.monotonic()
    result = run_python("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(script))
    assert time.monotonic() - started < 90  # of 1800 s that it could wait
    assert result.returncode != 0
    marked = [line for line in result.stderr.splitlines() if line.startswith("[rank ")]
    assert sum("Traceback (most recent call last)" in line for line in marked) == 1
    assert "[rank 1/2] Traceback (most recent call last):" in marked
    assert "[rank 1/2] ValueError: rank one has had enough" in marked
    # Behind it comes the launcher's own report, which must be about the rank that failed first.
    of_ranks, of_launcher = result.stderr.split("ChildFailedError", 1)
    assert re.findall(r"(?m)^(?!\[rank).*raise ValueError", of_ranks) == []
    assert re.search(r"rank +: (\d)", of_launcher.split("Root Cause")[1]).group(1) == "1"
    assert "RuntimeError" not in of_launcher
    # The launcher can be faster in ending rank 0 than rank 0 is in noticing; what it says must be who failed first.
    for line in marked:
        if line.startswith("[rank 0/2]"):
            assert line.startswith("[rank 0/2] stopped: rank 1 failed first, see its message")


def test_the_other_rank_says_who_failed_first(launcher, tmp_path):
    """Without torchrun's agent nothing ends rank 0 from outside: it notices by itself and says why it stops."""
    (tmp_path / "train.py").write_text(PROGRAM)
    ended = launcher.run(tmp_path, "train.py", [], 2)
    of_rank_0, of_rank_1 = ended["outputs"]
    assert ended["statuses"] == [1, 1], ended["outputs"]
    assert "[rank 1/2] ValueError: rank one has had enough" in of_rank_1
    assert "[rank 0/2] stopped: rank 1 failed first, see its message (RuntimeError here)" in of_rank_0
    assert (of_rank_0 + of_rank_1).count("Traceback (most recent call last)") == 1


def test_without_a_launcher_an_error_passes_unchanged(capsys):
    error = ValueError("mine")

    @report_failure
    def main(first, *, second):
        """Its docstring."""
        if second:
            raise error
        return first

    assert main(3, second=0) == 3
    assert main.__name__ == "main" and main.__doc__ == "Its docstring."
    with pytest.raises(ValueError) as caught:
        main(3, second=1)
    assert caught.value is error
    assert "[rank" not in capsys.readouterr().err


def test_an_exit_status_passes_unchanged():
    @report_failure
    def main():
        raise SystemExit(143)

    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 143


def test_an_uncaught_error_exits_with_1_and_an_ordinary_traceback(launcher, tmp_path):
    program = "from retrofit.distributed.job import report_failure\n@report_failure\ndef main():\n    1 / 0\nmain()"
    (tmp_path / "program.py").write_text(program)
    ended = launcher.run(tmp_path, "program.py", [])
    assert ended["statuses"] == [1]
    (text,) = ended["outputs"]
    assert text.strip().endswith("ZeroDivisionError: division by zero")
    assert text.count("Traceback (most recent call last)") == 1
