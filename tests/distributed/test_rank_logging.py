"""Rank 0 logs to the console, the other ranks into files of their own."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from forked_python import ForkedPython
from run_program import run_python

from retrofit.distributed.job import rank_logging
from retrofit.distributed.job.rank_logging import RankLog, keep_rank_log_in, setup_rank_logging

PROGRAM = """
import logging, sys, warnings
from pathlib import Path
import retrofit.distributed as rd

own = logging.getLogger("own")  # a logger with a console of its own
own.addHandler(logging.StreamHandler())
own.propagate = False


@rd.job.report_failure
def main():
    rank, _, _ = rd.setup_distributed()
    elsewhere = logging.FileHandler(f"{sys.argv[1]}/elsewhere{rank}.txt")
    logging.getLogger("file").addHandler(elsewhere)
    rd.job.setup_rank_logging()
    folder = Path(sys.argv[1]) / "run"
    logging.getLogger("a").info("info of %d", rank)
    if rank < 2:
        logging.getLogger("early").warning("early warning of %d", rank)
        logging.getLogger("file").error("into both files, of %d", rank)
        own.error("own of %d", rank)
        warnings.warn(f"python warning of {rank}")
    if rank == 0:
        folder.mkdir()
    rd.barrier()
    rd.job.keep_rank_log_in(folder)
    print(f"{rank} sees {sorted(path.name for path in folder.iterdir()) if rank == 1 else ''}", flush=True)
    if rank < 2:
        logging.error("late error of %d", rank)
    rd.barrier()
    if rank == 1:
        raise ValueError("enough")
    rd.cleanup_distributed()


main()
"""


@pytest.fixture(scope="module")
def run(forks: ForkedPython, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The folder and the output of a run of three ranks, of which rank 1 fails at the end."""
    folder = tmp_path_factory.mktemp("logging")
    script = folder / "program.py"
    script.write_text(PROGRAM)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=3")
    with forks.in_place():
        return folder, run_python(*launcher, str(script), str(folder))


def test_only_rank_0_is_on_the_console(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    stderr = run[1].stderr
    lines = stderr.splitlines()
    for said in ("info of 0", "early warning of 0", "own of 0", "ERROR:root:late error of 0"):
        assert said in lines, stderr
    assert "UserWarning: python warning of 0" in stderr
    for said in ("warning of 1", "file, of 1", "own of 1", "error of 1", "info of 1", "info of 2"):
        assert said not in stderr


def test_the_file_of_a_rank_has_messages_from_before_the_folder_existed(
    run: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    assert "1 sees ['rank1.log']" in run[1].stdout
    text = (run[0] / "run" / "rank1.log").read_text()
    order = ["WARNING early: early warning of 1", "ERROR file: into both files", "ERROR own: own of 1"]
    order += ["UserWarning: python warning of 1", "ERROR root: late error of 1"]
    positions = [text.index(said) for said in order]
    assert positions == sorted(positions)
    assert text.count("own of 1") == 1 and "info" not in text and "of 0" not in text


def test_the_file_ends_with_the_error_that_ended_the_rank(
    run: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    text = (run[0] / "run" / "rank1.log").read_text()
    assert text.rstrip().endswith("[rank 1/3] ValueError: enough")
    assert "[rank 1/3] ValueError: enough" in run[1].stderr and run[1].returncode != 0


def test_a_rank_without_warnings_leaves_no_file(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    names = {path.name for path in (run[0] / "run").iterdir()}
    assert names <= {"rank1.log", "rank2.log"}
    if "rank2.log" in names:  # all that rank 2 can say is that rank 1 has gone
        assert "stopped: rank 1 failed first" in (run[0] / "run" / "rank2.log").read_text().splitlines()[0]


def test_a_handler_that_writes_elsewhere_is_kept(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    assert (run[0] / "elsewhere1.txt").read_text() == "into both files, of 1\n"


def record(text: str) -> logging.LogRecord:
    return logging.makeLogRecord({"levelno": logging.ERROR, "levelname": "ERROR", "name": "n", "msg": text})


def test_messages_without_a_log_file_are_printed_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    log = RankLog("[rank 1/2]")
    log.handle(record("lost?"))
    log.close()
    log.close()
    shown = capsys.readouterr().err
    assert shown.startswith("[rank 1/2] ") and shown.endswith("ERROR n: lost?\n") and shown.count("lost") == 1


def test_a_continued_run_appends_to_the_same_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("first", "second"):
        log = RankLog("[rank 1/2]")
        log.write_to(str(tmp_path / "rank1.log"))
        log.handle(record(text))
        log.close()
    lines = (tmp_path / "rank1.log").read_text().splitlines()
    assert [line.split()[-1] for line in lines] == ["first", "second"]
    assert capsys.readouterr().err == ""


@contextmanager
def bare_root() -> Iterator[logging.Logger]:
    """The root logger without handlers, as a script finds it (pytest adds some to each test), and put back."""
    logger, last = logging.getLogger(), logging.lastResort
    handlers, level = logger.handlers[:], logger.level
    logger.handlers[:] = []
    logger.setLevel(logging.WARNING)
    assert last is not None
    try:
        yield logger
    finally:
        logger.handlers[:] = handlers
        logger.setLevel(level)
        last.setLevel(logging.WARNING)
        logging.captureWarnings(False)


@pytest.mark.parametrize(
    ("level", "shown"),
    [("DEBUG", "diwe"), ("INFO", "iwe"), ("WARNING", "we"), ("ERROR", "e")],
)
def test_the_level_of_one_process(capsys: pytest.CaptureFixture[str], level: str, shown: str) -> None:
    with bare_root():
        setup_rank_logging(level)
        keep_rank_log_in("nowhere")  # rank 0 has no file
        for letter, name in zip("diwe", ("debug", "info", "warning", "error")):
            getattr(logging.getLogger("x"), name)(letter)
    assert capsys.readouterr().err == "".join(f"{letter}\n" for letter in shown)
    assert rank_logging._rank_log is None


def test_a_script_that_has_set_up_its_logging_keeps_it_by_default() -> None:
    with bare_root() as root:
        handler = logging.NullHandler()
        root.addHandler(handler)
        setup_rank_logging("INFO")
        assert root.handlers == [handler] and root.level == logging.WARNING
        setup_rank_logging("DEBUG")
        assert root.handlers == [handler] and root.level == logging.DEBUG


def test_an_unknown_level() -> None:
    with pytest.raises(ValueError, match="unknown log level 'LOUD'; use one of: DEBUG, INFO, WARNING, ERROR"):
        setup_rank_logging("LOUD")


@pytest.mark.usefixtures("forked_python")
def test_the_default_changes_no_output_of_a_process() -> None:
    """What Python shows without any set-up, warnings of all kinds, is shown just so behind ours."""
    said = (
        "import logging, warnings; logging.getLogger('a').error('e'); warnings.warn('p'); logging.warning('w %d', 1); "
        "logging.getLogger('a').error('e')"
    )
    ours = "from retrofit.distributed.job.rank_logging import setup_rank_logging as s; s('INFO')"
    shown = [run_python("-c", f"{first}\n{said}").stderr for first in ("pass", ours)]
    assert shown[0] == shown[1] and shown[0].startswith("e\n") and shown[0].endswith("WARNING:root:w 1\nERROR:a:e\n")
