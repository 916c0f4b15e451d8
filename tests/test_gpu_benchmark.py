"""benchmarks/gpu.py: the code path on the CPU with torch and torchvision alone, what it says where it cannot run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "benchmarks" / "gpu.py"
UNWANTED = ("tensorboardX", "gpustat", "yaml", "rich", "tqdm", "matplotlib", "deepspeed")


def run_benchmark(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_the_parts_run_on_the_cpu_with_torch_and_torchvision_alone(tmp_path: Path) -> None:
    for name in UNWANTED:
        Path(tmp_path, f"{name}.py").write_text(f"raise ImportError('{name} is not to be needed')\n")
    output = tmp_path / "figures"
    parts = ["nccl", "gloo_two_ranks", "recompute"]
    ended = run_benchmark("--device", "cpu", "--only", *parts, "--output", str(output), PYTHONPATH=str(tmp_path))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads((output / "gpu_cpu.json").read_text())
    assert report["environment"]["torch"] == torch.__version__
    assert report["parts"]["nccl"]["status"] == "not run: needs CUDA"
    assert report["parts"]["gloo_two_ranks"]["figures"]["largest difference of a weight"] < 1e-5
    assert report["parts"]["recompute"]["figures"]["time, recomputed / kept"] > 0
    assert "| nccl |  | not run: needs CUDA |" in (output / "gpu_cpu.md").read_text()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is visible")
def test_without_a_gpu_it_says_so(launcher: Any, tmp_path: Path) -> None:
    ended = launcher.run(ROOT, str(SCRIPT), ["--output", str(tmp_path / "figures")])
    assert ended["statuses"] == [2]
    (text,) = ended["outputs"]
    assert "no GPU to measure" in text and "--device cpu" in text
    assert not list(tmp_path.iterdir())


def test_a_part_that_fails_or_hangs_is_reported_and_the_others_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import gpu

    (tmp_path / "gpu_parts.py").write_text(
        "import os, sys, time\n"
        "PARTS = dict.fromkeys(['fails', 'hangs', 'gloo_two_ranks', 'works'])\n"
        "if sys.argv[1] == 'fails' or sys.argv[1] == 'gloo_two_ranks' and os.environ['RANK'] == '1':\n"
        "    raise RuntimeError('out of luck')\n"
        "if sys.argv[1] in ('hangs', 'gloo_two_ranks'):\n"
        "    time.sleep(100)\n"
        "print('RESULT {\"figure\": 1}')\n"
    )
    monkeypatch.setattr(gpu, "HERE", tmp_path)
    monkeypatch.setattr(gpu, "LIMIT_S", {"hangs": 0.2})
    results: dict[str, Any] = {part: gpu.run_part(part, "cpu") for part in ("fails", "hangs", "gloo_two_ranks")}
    assert {result["status"] for result in results.values()} == {"failed"}
    assert "RuntimeError: out of luck" in results["fails"]["error"]
    assert "over its time limit of 1 s" in results["hangs"]["error"]
    assert "rank 1 ended with status 1" in results["gloo_two_ranks"]["error"]
    assert results["gloo_two_ranks"]["seconds"] < 30
    assert gpu.run_part("works", "cpu")["figures"] == {"figure": 1}
    page = gpu.as_markdown({"environment": {}, "parts": results})
    assert "| fails |  | failed |" in page and "out of luck" in page
