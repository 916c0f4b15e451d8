"""The process of one rank: it looks like a fresh `python script.py` and it ends like one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from verify_processes import ROOT, Driver, driving, launching, log

from retrofit.verify.processes.child import rank_environ


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with driving(tmp_path_factory.mktemp("driver")) as driver:
        yield driver


@pytest.fixture
def launch(tmp_path: Path) -> Iterator:
    with launching(tmp_path) as launch:
        yield launch


REPORT = """
    import json, os, signal, sys, threading
    import torch
    import helper
    print(json.dumps({
        "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(), "stdin": sys.stdin.read(), "environ": dict(os.environ),
        "threads": torch.get_num_threads(), "seed": torch.initial_seed(), "running": threading.active_count(),
        "kit": [name for name in sys.modules if name.split(".")[0] == "retrofit"],
        "session": os.getsid(0) == os.getpid(),
        "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "name": __name__, "file": __file__,
        "usr2": int(signal.getsignal(signal.SIGUSR2)), "int": signal.getsignal(signal.SIGINT).__name__,
    }))
    print("to stderr", file=sys.stderr)
"""


def test_a_rank_looks_like_a_fresh_python_in_the_project(driver, launch):
    run = launch(REPORT, script="tools/train.py", argv=["--lr", "0.1"], num_threads=2, environ={"EXTRA": "1"})
    project = Path(run["project"])
    (project / "tools").mkdir()
    (project / "train.py").rename(project / "tools" / "train.py")
    (project / "tools" / "helper.py").touch()
    reply = driver.run(run)
    assert reply["statuses"] == [0] and not reply["hung"] and not reply["timed_out"] and reply["stacks"] == {}
    printed, warning = log(run).splitlines()
    report = json.loads(printed)
    assert warning == "to stderr"
    assert report["argv"] == ["tools/train.py", "--lr", "0.1"] and report["cwd"] == run["project"]
    assert report["path"][0] == str(project / "tools")
    assert str(ROOT / "tests") not in report["path"], "the folder of the parent's script"
    assert str(ROOT) not in report["path"], "a checkout of the kit has a utils.py, too"
    assert report["environ"]["PWD"] == run["project"] and report["environ"]["EXTRA"] == "1"
    assert report["environ"]["OMP_NUM_THREADS"] == "2" and report["threads"] == 2
    assert "RANK" not in report["environ"] and "MASTER_PORT" not in report["environ"]
    assert report["stdin"] == "" and report["session"] and report["running"] == 1
    assert report["blocked"] == 0 and report["usr2"] == 0 and report["int"] == "default_int_handler"
    assert report["kit"] == [] and report["name"] == "__main__"


def test_the_kit_of_the_project_goes_before_ours(driver, launch):
    source = "import retrofit, retrofit.distributed; print(retrofit.__file__, retrofit.distributed.__file__)"
    with_kit, without = launch(source), launch(source)
    kit = Path(with_kit["project"], "retrofit")
    (kit / "distributed").mkdir(parents=True)
    (kit / "__init__.py").touch()
    (kit / "distributed" / "__init__.py").touch()
    assert driver.run(with_kit)["statuses"] == driver.run(without)["statuses"] == [0]
    assert log(with_kit).split() == [str(kit / "__init__.py"), str(kit / "distributed" / "__init__.py")]
    assert log(without).split()[0] == str(ROOT / "retrofit" / "__init__.py")


def test_modules_next_to_the_kit_do_not_hide_the_project_s(driver, launch):
    run = launch("import utils.files, retrofit; print(utils.files.__file__)")
    names = Path(run["project"], "utils")
    names.mkdir()
    (names / "files.py").touch()
    assert driver.run(run)["statuses"] == [0]
    assert log(run).split() == [str(names / "files.py")]


def test_a_project_that_is_a_checkout_of_the_kit_finds_its_modules_from_a_subfolder(driver, launch):
    run = launch("import beside; print(beside.__file__)")
    project = Path(run["project"])
    (project / "retrofit").mkdir()
    for name in ("retrofit/__init__.py", "beside.py"):
        (project / name).touch()
    assert driver.run(run)["statuses"] == [0]
    assert log(run).split() == [str(project / "beside.py")]


def test_every_rank_gets_launcher_variables_and_none_of_the_caller(driver, launch):
    source = "import json, os; print(json.dumps(dict(os.environ)))"
    of_a_launcher = {"RANK": "7", "LOCAL_WORLD_SIZE": "9", "SLURM_PROCID": "3", "RETROFIT_BATCH": "global"}
    one, many = launch(source), launch(source, 2)
    driver.ask(one, many, caller_environ={**of_a_launcher, "SLURM_TMPDIR": "/scratch", "RANKING": "kept"})
    assert [result["statuses"] for result in driver.answer()["results"]] == [[0], [0, 0]]
    environ = json.loads(log(one))
    assert not {*of_a_launcher, "WORLD_SIZE", "MASTER_ADDR"} & set(environ)
    assert environ["SLURM_TMPDIR"] == "/scratch" and environ["RANKING"] == "kept"
    ranks = [json.loads(log(many, rank)) for rank in (0, 1)]
    for rank, environ in enumerate(ranks):
        assert environ["RANK"] == environ["LOCAL_RANK"] == str(rank)
        assert environ["WORLD_SIZE"] == environ["LOCAL_WORLD_SIZE"] == "2"
        assert environ["GROUP_RANK"] == environ["NODE_RANK"] == "0" and environ["MASTER_ADDR"] == "127.0.0.1"
        assert "SLURM_PROCID" not in environ and "RETROFIT_BATCH" not in environ
    assert ranks[0]["MASTER_PORT"] == ranks[1]["MASTER_PORT"]


def test_rank_environ_does_not_change_its_argument():
    caller = {"RANK": "1", "HOME": "/home/me"}
    environ = rank_environ(caller, rank=0, world_size=1, master_port=None, num_threads=3)
    assert environ == {"HOME": "/home/me", "OMP_NUM_THREADS": "3"} and caller["RANK"] == "1"


ENDINGS = {
    "success": "print('done')",
    "exit_none": "import sys; sys.exit()",
    "exit_status": "import sys; sys.exit(3)",
    "exit_beyond_a_byte": "import sys; sys.exit(-2)",
    "exit_message": "import sys; sys.exit('no such file')",
    "exception": "def train():\n    raise ValueError('bad value')\ntrain()",
    "syntax_error": "def train(:",
    "excepthook": "import sys\nsys.excepthook = lambda *error: print('hook', error[0].__name__)\nraise ValueError",
    "interrupt": "raise KeyboardInterrupt",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "os_exit": "import os; print('now', flush=True); os._exit(4)",
    "atexit": "import atexit; atexit.register(print, 'first'); atexit.register(print, 'second')",
    "atexit_of_a_failure": "import atexit; atexit.register(print, 'at exit'); raise ValueError('first')",
    "atexit_fails": "import atexit\ndef fail():\n    raise ValueError('late')\natexit.register(fail)",
    "thread": """
        import threading, time
        def late():
            time.sleep(0.3)
            print('late')
        threading.Thread(target=late).start()
        print('end of the script')
    """,
    "daemon_thread": "import threading, time; threading.Thread(target=time.sleep, args=[60], daemon=True).start()",
    "pool": """
        import time
        from concurrent.futures import ThreadPoolExecutor
        ThreadPoolExecutor(2).submit(lambda: (time.sleep(0.2), print('from the pool')))
    """,
    "finalizer": """
        import weakref
        class Writer: pass
        weakref.writer = Writer()  # until the very end
        weakref.finalize(weakref.writer, print, 'finalized')
    """,
    "open_files": """
        import helper
        text, binary = open('text.txt', 'w'), open('binary.txt', 'wb')
        text.write('text'), binary.write(b'binary')
        def uses(): return text, binary
    """,
    "logging": """
        import logging, logging.handlers
        memory = logging.handlers.MemoryHandler(100, target=logging.StreamHandler())
        logging.getLogger().addHandler(memory)
        logging.getLogger().warning('held back')
    """,
    "child_process": """
        import multiprocessing, time
        def work():
            time.sleep(1.5)
            print('from the child', flush=True)
        if __name__ == '__main__':
            multiprocessing.get_context('fork').Process(target=work).start()
    """,
}


@pytest.mark.parametrize("name", ENDINGS)
def test_a_script_ends_as_it_does_in_python(driver, launch, name):
    run = launch(ENDINGS[name])
    project = Path(run["project"])
    (project / "helper.py").write_text("kept = open('helper.txt', 'w')\nkept.write('of a module')\n")
    expected = subprocess.run([sys.executable, "train.py"], cwd=project, capture_output=True, text=True, timeout=300)
    files = {path: path.read_text() for path in project.glob("*.txt")}
    for path in files:
        path.unlink()
    assert driver.run(run)["statuses"] == [expected.returncode]
    assert {path: path.read_text() for path in project.glob("*.txt")} == files
    printed = log(run)
    for line in [*expected.stdout.splitlines(), *expected.stderr.splitlines()[-1:]]:
        assert line in printed.splitlines()
    if expected.stderr.startswith("Traceback"):
        assert "child.py" not in printed.split("Traceback")[1], "frames of ours tell the user nothing"
    assert len(files) == (3 if name == "open_files" else 0)


def test_a_thread_that_never_ends_does_not_keep_the_run(driver, launch):
    run = launch("""
        import atexit, sys, threading
        atexit.register(print, "at exit")
        threading.Thread(target=threading.Event().wait, name="uploader").start()
        sys.exit(3)
    """)
    reply = driver.run(run)
    assert reply["statuses"] == [3] and 5 <= reply["seconds"] < 12
    assert log(run).splitlines() == ["threads still running 5 s after the script's end: uploader", "at exit"]


def test_a_missing_project_is_reported_in_the_log(driver, launch):
    run = launch("")
    Path(run["project"], "train.py").unlink()
    Path(run["project"]).rmdir()
    assert driver.run(run)["statuses"] == [1]
    assert "FileNotFoundError" in log(run) and run["project"] in log(run)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_works_in_a_script(driver, launch, method):
    run = launch(f"""
        import multiprocessing, os
        import helper

        def work(queue):
            queue.put((os.getcwd(), helper.VALUE, __name__))

        if __name__ == "__main__":
            context = multiprocessing.get_context("{method}")
            queue = context.Queue()
            process = context.Process(target=work, args=[queue])
            process.start()
            print(*queue.get(timeout=300))
            process.join()
            print(process.exitcode)
    """)
    Path(run["project"], "helper.py").write_text("VALUE = 'helped'")
    assert driver.run(run)["statuses"] == [0], log(run)
    name = "__main__" if method == "fork" else "__mp_main__"
    assert log(run).split() == [run["project"], "helped", name, "0"]
