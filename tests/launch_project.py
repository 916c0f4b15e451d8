"""A copy of the launch scripts with a stand-in train.py that records how it was started."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = {"train_torchrun.sh": "torch.distributed.run", "train_ddp.sh": "torch.distributed.launch"}
DOCUMENTED_VARIABLES = (
    *("NPROC_PER_NODE", "NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("MASTER_TIMEOUT", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "MAX_RESTARTS"),
    *("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PYTHON"),
)
OTHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "PYTHONPATH", "VIRTUAL_ENV")
RECORD = """
import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
record = {"argv": sys.argv, "cwd": os.getcwd(), **{name: os.environ.get(name) for name in names}}
with open(os.path.join(os.environ["RECORDS"], f"{record['RANK'] or 'launcher'}.json"), "w") as file:
    json.dump(record, file)
"""
STUB_TRAIN = (
    RECORD
    + """
import signal, time
if "--wait" in sys.argv:
    def note_signal(*_):
        open(os.path.join(os.environ["RECORDS"], f"{record['RANK']}.terminated"), "w").close()
        sys.exit(143)
    signal.signal(signal.SIGTERM, note_signal)
    open(os.path.join(os.environ["RECORDS"], f"{record['RANK']}.waiting"), "w").close()
    time.sleep(60)
"""
)


class Project:
    """A copy of the launch scripts in a folder of its own, and how to run them."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a project"  # a path with a space
        self.records = folder / "records"
        self.elsewhere = folder / "elsewhere"
        unwanted = {*DOCUMENTED_VARIABLES, *OTHER_VARIABLES}
        self.environ = {key: value for key, value in os.environ.items() if key not in unwanted}
        self.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        # Without an index: a fault that makes a test install torch must fail, not download it.
        self.environ.update(RECORDS=str(self.records), CUDA_VISIBLE_DEVICES="", PIP_NO_INDEX="1")
        for made in (self.root / "retrofit" / "distributed", self.records, self.elsewhere):
            made.mkdir(parents=True)
        for name in (*SCRIPTS, "pyproject.toml"):
            shutil.copy(ROOT / name, self.root / name)
        shutil.copytree(ROOT / "scripts", self.root / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "retrofit" / "distributed" / "launcher.py", self.root / "retrofit" / "distributed")
        (self.root / "train.py").write_text(STUB_TRAIN)

    def add_stub_torch(self) -> Project:
        """Put modules first on PYTHONPATH that are quick to import and launch nothing."""
        folder = self.root.parent / "stand_in"
        (folder / "torch" / "distributed").mkdir(parents=True)
        for name in (
            "torchvision",
            "tensorboardX",
            "gpustat",
            "tqdm",
            "yaml",
            "numpy",
            "PIL",
            "rich",
            "matplotlib",
            "psutil",
        ):
            (folder / f"{name}.py").touch()
        gpus = "class cuda:\n    device_count = staticmethod(lambda: int(os.environ.get('FAKE_GPUS', '0')))\n"
        (folder / "torch" / "__init__.py").write_text(f"import os\n{gpus}")
        (folder / "torch" / "distributed" / "__init__.py").touch()
        for launcher in ("run", "launch"):
            (folder / "torch" / "distributed" / f"{launcher}.py").write_text(RECORD)
        self.environ.update(PYTHONPATH=str(folder), XDG_CACHE_HOME=str(folder.parent))
        return self

    def run(self, script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a script of the project from another folder."""
        return subprocess.run(
            ["bash", str(self.root / script), *arguments],
            env={**self.environ, **variables},
            cwd=self.elsewhere,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def launched(self, script: str, *arguments: str, **variables: str) -> dict[str, Any]:
        """Run a script with the stand-in launcher; return what that recorded, and the line printed."""
        ended = self.run(script, *arguments, **variables)
        assert ended.returncode == 0, ended.stderr
        record = self.recorded("launcher")
        return {**record, "options": _options(record["argv"][1:]), "command": ended.stderr.splitlines()[-1]}

    def recorded(self, who: str) -> dict[str, Any]:
        """Return what a process recorded: "launcher", or the rank of a train.py."""
        return json.loads((self.records / f"{who}.json").read_text())


def _options(arguments: list[str]) -> dict[str, str]:
    return dict(argument[2:].split("=", 1) for argument in arguments if argument.startswith(("--n", "--ma")))
