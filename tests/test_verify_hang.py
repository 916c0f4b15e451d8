"""When a run counts as hung, and the line of the project where it stands."""

from __future__ import annotations

import subprocess
import sys

from retrofit.verify.processes.hang import HangWatch
from retrofit.verify.processes.stacks import stack_summary


def watch_through(seconds: int, cpu, trace, *, world_size: int = 2, ended: float | None = None) -> int | None:
    """Return the second at which a run with `cpu(t)` CPU seconds per rank and `trace(t)` bytes counts as hung."""
    watch = HangWatch(idle_s=20, world_size=world_size, now=0)
    for now in range(1, seconds + 1):
        watch.measure(now, dict(enumerate(cpu(now))), trace(now))
        if watch.is_hung(ended=None if ended is None or now < ended else ended):
            return now
    return None


def test_hang_watch():
    def quiet(now):
        return [0.001 * now, 0.001 * now]

    def one_busy(now):
        return [0.001 * now, 0.9 * now]

    assert watch_through(200, quiet, lambda now: 0) == 20
    assert watch_through(200, quiet, lambda now: 0, ended=0) == 10
    assert watch_through(200, quiet, lambda now: 0, ended=6) == 16, "the others are about to end too"
    assert watch_through(200, quiet, lambda now: 0, ended=15) == 20
    assert watch_through(200, quiet, lambda now: min(now, 30), ended=5) == 40
    assert watch_through(200, quiet, lambda now: min(now, 30)) == 50
    assert watch_through(200, one_busy, lambda now: now) is None
    assert watch_through(200, quiet, lambda now: now // 15) is None
    assert watch_through(200, one_busy, lambda now: 0) == 120, "who spins for two minutes waits"
    assert watch_through(200, one_busy, lambda now: 0, world_size=1) is None, "one process has nobody to wait for"
    assert watch_through(200, lambda now: [0.03 * now], lambda now: 0, world_size=1) is None
    assert watch_through(200, lambda now: [max(0, now - 60) * 0.5], lambda now: 0, world_size=1) == 20
    assert watch_through(200, lambda now: [min(now, 60) * 0.5], lambda now: 0, world_size=1) == 80


DUMP = """\
Thread 0x00007f2a00000001 [pt_autograd_0] (most recent call first):
  File "/home/me/project/hooks.py", line 7 in hook

Current thread 0x00007f2a00000002 (most recent call first):
  File "/site/torch/distributed/distributed_c10d.py", line 2501 in all_reduce
  File "/home/me/project/retrofit/distributed/collectives.py", line 30 in reduce_dict
  File "/home/me/project/.venv/lib/python3/site-packages/lib.py", line 5 in call
  File "src/loop.py", line 123 in train_one_epoch
  File "/home/me/project/train.py", line 9 in <module>
  File "<frozen runpy>", line 88 in _run_code

Thread 0x00007f2a00000003 (most recent call first):
  File "/home/me/project/main.py", line 1 in main
"""


def test_stack_summary_names_the_users_innermost_line():
    assert stack_summary(DUMP, "/home/me/project") == "src/loop.py:123 in train_one_epoch"
    assert stack_summary(DUMP, "/home/me/project/") == "src/loop.py:123 in train_one_epoch"
    own_kit = DUMP.replace('"src/loop.py"', '"/opt/loop.py"').replace("project/train.py", "other/train.py")
    assert stack_summary(own_kit, "/home/me/project") == "retrofit/distributed/collectives.py:30 in reduce_dict"


def test_stack_summary_does_not_name_a_line_of_a_runtime_in_one_file(tmp_path):
    (tmp_path / "multigpu.py").write_text('RETROFIT_RUNTIME = "1.0"\n')
    dump = DUMP.replace("/home/me/project", str(tmp_path)).replace("retrofit/distributed/collectives.py", "multigpu.py")
    assert stack_summary(dump, str(tmp_path)) == "src/loop.py:123 in train_one_epoch"
    (tmp_path / "multigpu.py").write_text("")
    assert stack_summary(dump, str(tmp_path)) == "multigpu.py:30 in reduce_dict"


def test_stack_summary_goes_to_the_main_thread_and_gives_up():
    elsewhere = DUMP.replace("Current thread", "Thread")
    assert stack_summary(elsewhere, "/home/me/project") == "main.py:1 in main"
    assert stack_summary(DUMP.replace("/home/me/project", "/p").replace('"src/', '"/s/'), "/home/me/project") is None
    assert stack_summary("", "/home/me/project") is None
    assert stack_summary("Fatal Python error: Aborted\n", "/home/me/project") is None


def test_stack_summary_reads_what_faulthandler_writes(tmp_path):
    project = tmp_path / "pröjekt 训练"
    project.mkdir()
    script = "import faulthandler, sys\ndef träin():\n    faulthandler.dump_traceback(sys.stdout)\nträin()\n"
    (project / "train.py").write_text(script, encoding="utf-8")
    dump = subprocess.run([sys.executable, project / "train.py"], capture_output=True, text=True, timeout=300).stdout
    assert stack_summary(dump, str(project)) == "train.py:3 in träin"
    (tmp_path / "link").symlink_to(project)
    assert stack_summary(dump, str(tmp_path / "link")) == "train.py:3 in träin"
