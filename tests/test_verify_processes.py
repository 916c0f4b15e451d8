"""Runs of forked processes: how they end, side by side, and that nothing of them is ever left."""

from __future__ import annotations

import json
import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from verify_processes import Driver, driving, is_alive, launching, log, wait_until

from retrofit.verify.processes.launch import free_port
from retrofit.verify.processes.stacks import stack_summary


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with driving(tmp_path_factory.mktemp("driver")) as driver:
        yield driver


@pytest.fixture
def launch(tmp_path: Path) -> Iterator:
    with launching(tmp_path) as launch:
        yield launch


@pytest.fixture
def new_driver(tmp_path: Path) -> Iterator[Driver]:
    """A driver of the test's own, to be killed."""
    folder = tmp_path / "driver"
    folder.mkdir()
    driver = Driver(folder)
    yield driver
    driver.process.kill()
    driver.stop()


GLOO = """
    import os, sys, time
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    rank, value = dist.get_rank(), torch.ones(3)
    dist.all_reduce(value)
    def train_one_epoch():
        {body}
    train_one_epoch()
    print("end", rank)
"""


def test_ranks_join_one_process_group(driver, launch):
    run = launch(GLOO.format(body="dist.all_reduce(value); print(value.tolist()); dist.destroy_process_group()"), 2)
    assert driver.run(run)["statuses"] == [0, 0]
    assert log(run, 1).splitlines() == ["[4.0, 4.0, 4.0]", "end 1"]


def test_a_rank_that_skips_a_collective_hangs_the_run(driver, launch):
    # Rank 1 waits in a collective that rank 0 does not call; rank 0 then waits for rank 1 in another one.
    body = "dist.all_reduce(value) if rank == 1 else time.sleep(0.5); dist.recv(value, 1 - rank)"
    run = launch(GLOO.format(body=body), 2)
    reply = driver.run(run, idle_s=2)
    assert reply["hung"] and not reply["timed_out"] and reply["statuses"] == [None, None]
    assert 2 < reply["seconds"] < 20
    for rank in ("0", "1"):
        assert stack_summary(reply["stacks"][rank], run["project"]) == "train.py:8 in train_one_epoch"
    assert "distributed_c10d.py" in reply["stacks"]["1"]


def test_half_the_patience_is_enough_once_a_rank_has_ended(driver, launch):
    run = launch(
        """
        import os, time
        if os.environ["RANK"] == "1":
            time.sleep(60)
        """,
        2,
    )
    reply = driver.run(run, idle_s=6)
    assert reply["hung"] and reply["statuses"] == [0, None] and list(reply["stacks"]) == ["1"]
    assert 3 <= reply["seconds"] < 5.9


def test_a_run_that_computes_or_records_is_not_hung(driver, launch):
    computing = launch("import time\nend = time.monotonic() + 4\nwhile time.monotonic() < end: pass")
    recording = launch("""
        import os, time
        for _ in range(8):
            time.sleep(0.5)
            with open(os.environ["FOLDER"] + "/rank0.jsonl", "a") as trace:
                trace.write("{}")
    """)
    driver.ask(computing, recording, idle_s=3.5)
    for result in driver.answer()["results"]:
        assert result["statuses"] == [0] and not result["hung"] and result["seconds"] >= 4


def test_a_failed_rank_ends_the_others_after_a_while(driver, launch):
    run = launch(
        """
        import os, sys, time
        def wait():
            time.sleep(60)
        if os.environ["RANK"] == "0":
            wait()
        time.sleep(1 if os.environ["RANK"] == "1" else 2)
        sys.exit(int(os.environ["RANK"]))
        """,
        3,
    )
    reply = driver.run(run)
    assert reply["statuses"] == [None, 1, 2] and not reply["hung"] and not reply["timed_out"]
    assert 6 <= reply["seconds"] < 30
    assert stack_summary(reply["stacks"]["0"], run["project"]) == "train.py:4 in wait"


def test_a_killed_rank(driver, launch):
    body = "os.kill(os.getpid(), 9) if rank == 1 else None; dist.all_reduce(value)"
    run = launch(GLOO.format(body=body), 2)
    reply = driver.run(run)
    assert reply["statuses"] == [1, -9] and "RuntimeError" in log(run) and reply["seconds"] < 10


def test_the_time_limit(driver, launch):
    run = launch("while True: pass", 2)
    reply = driver.run(run, time_limit_s=4)  # enough for both to have begun on a busy machine
    assert reply["timed_out"] and not reply["hung"] and reply["statuses"] == [None, None]
    assert 4 <= reply["seconds"] < 30 and 'train.py", line 1' in reply["stacks"]["1"]


STUBBORN = """
    import os, signal, subprocess, sys, time
    ignore = "import signal, time; signal.signal(15, signal.SIG_IGN); print('here', flush=True); time.sleep(60)"
    def start(**options):
        child = subprocess.Popen([sys.executable, "-c", ignore], stdout=subprocess.PIPE, **options)
        assert child.stdout.readline() == b"here\\n"
        print(child.pid, flush=True)
    start()
    start(start_new_session=True)
    time.sleep(2.5)
"""


@pytest.mark.parametrize(
    "ending", ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"], ids=["by itself", "by force"]
)
def test_grandchildren_that_ignore_sigterm_are_ended(driver, launch, ending):
    run = launch(textwrap.dedent(STUBBORN) + ending)
    reply = driver.run(run, idle_s=3)
    assert reply["statuses"] == [None if ending else 0] and reply["hung"] == bool(ending)
    pids = [int(line) for line in log(run).splitlines()]
    assert len(pids) == 2 and not any(map(is_alive, pids))


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_to_the_parent_ends_all_runs(new_driver, launch, number):
    first, second = launch(STUBBORN + "    time.sleep(60)", 2), launch("import time\nprint(0)\ntime.sleep(60)")
    new_driver.ask(first, second)
    logs = [Path(first["folder"], "rank0.log"), Path(first["folder"], "rank1.log"), Path(second["folder"], "rank0.log")]
    wait_until(lambda: all(path.exists() and path.read_text().strip() for path in logs))
    wait_until(lambda: all(len(path.read_text().splitlines()) == 2 for path in logs[:2]))
    pids = [int(line) for path in logs[:2] for line in path.read_text().splitlines()]
    ranks = psutil.Process(new_driver.process.pid).children()
    assert len(ranks) == 3 and all(map(is_alive, pids))
    new_driver.process.send_signal(number)
    expected = -number if number == signal.SIGINT else 128 + number  # KeyboardInterrupt, SystemExit
    assert new_driver.process.wait(60) == expected
    assert not any(map(is_alive, [*pids, *(rank.pid for rank in ranks)]))


def test_a_killed_parent_ends_its_ranks(new_driver, launch):
    run = launch("import time\nprint('ready')\ntime.sleep(600)", 2)
    new_driver.ask(run)
    wait_until(lambda: all(Path(run["folder"], f"rank{rank}.log").exists() and log(run, rank) for rank in (0, 1)))
    ranks = psutil.Process(new_driver.process.pid).children()
    new_driver.process.kill()
    assert len(ranks) == 2
    wait_until(lambda: not any(is_alive(rank.pid) for rank in ranks))


TIMES = """
    import json, time
    started = time.monotonic()
    time.sleep(0.5)
    print(json.dumps([started, time.monotonic()]))
"""


def times(run: dict) -> tuple[float, float]:
    """Return when all ranks of a run were busy: from the last start to the first end."""
    spans = [json.loads(log(run, rank)) for rank in range(run["world_size"])]
    return max(start for start, _ in spans), min(end for _, end in spans)


def test_runs_side_by_side_as_far_as_they_fit(driver, launch):
    runs = [launch(TIMES, world_size) for world_size in (2, 2, 1)]
    driver.ask(*runs, max_processes=3)
    assert [result["statuses"] for result in driver.answer()["results"]] == [[0, 0], [0, 0], [0]]
    first, second, small = map(times, runs)
    assert small[0] < first[1] and first[0] < small[1], "the first and the third fit together"
    assert second[0] >= first[1], "the second has to wait"


def test_without_a_limit_all_run_at_once_each_with_its_own_port(driver, launch, tmp_path):
    wait_for_all = f"""
        import os, pathlib, time
        met = pathlib.Path("{tmp_path}", "met")
        met.mkdir(exist_ok=True)
        (met / str(os.getpid())).touch()
        while len(list(met.iterdir())) < 6:
            time.sleep(0.02)
        print(os.environ["MASTER_PORT"])
    """
    runs = [launch(wait_for_all, 2) for _ in range(3)]
    driver.ask(*runs)
    assert [result["statuses"] for result in driver.answer()["results"]] == [[0, 0]] * 3
    assert len({log(run) for run in runs}) == 3


def test_one_run_hangs_and_the_other_continues(driver, launch):
    run = launch("import time\nend = time.monotonic() + 3\nwhile time.monotonic() < end: pass")
    hanging = launch("import time; time.sleep(60)")
    driver.ask(run, hanging, idle_s=1)
    good, bad = driver.answer()["results"]
    assert good["statuses"] == [0] and not good["hung"] and bad["statuses"] == [None] and bad["hung"]


def test_a_run_that_never_fits_is_refused(driver, launch):
    driver.ask(launch("", 3), max_processes=2)
    assert "launch 0 has 3 ranks and never fits into max_processes=2" in driver.answer()["error"]


def test_progress_is_reported_twice_a_second(driver, launch):
    driver.ask(launch("import time; time.sleep(1.8)"))
    progress = driver.answer()["progress"]
    assert len(progress) >= 2
    assert all(later - earlier >= 0.49 for earlier, later in zip(progress, progress[1:]))


def test_an_error_of_the_caller_ends_the_runs(driver, launch):
    driver.ask(launch(STUBBORN + "    time.sleep(60)", 2), progress_fails=True)
    reply = driver.answer()
    assert reply["error"] == "ValueError: on_progress fails" and reply["results"] is None
    assert reply["threads"] == 1


def test_free_port_can_be_bound_and_is_not_taken():
    """Nor will the kernel give it to a connection before a rank listens on it."""
    ports = set()
    given = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(given.read_text().split()[0]) if given.exists() else 32_768
    for _ in range(20):
        ports.add(free_port(ports))
    assert len(ports) == 20 and all(1024 < port < first for port in ports)
