"""Who am I: the place in the job that the launcher's variables give."""

from __future__ import annotations

import os
from itertools import combinations
from types import MappingProxyType

import pytest

from retrofit.distributed.process.environment import (
    LAUNCHER_VARIABLES,
    DistributedEnvironment,
    read_environment,
)

LAUNCHED = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
PARTS = [part for size in (1, 2) for part in combinations(LAUNCHER_VARIABLES, size)]
SRUN = {
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "123456",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
}


def test_no_launcher_is_rank_0_of_1():
    assert read_environment({}) == DistributedEnvironment(rank=0, local_rank=0, world_size=1, launcher="none")


def test_launcher_variables_are_taken():
    variables = {**LAUNCHED, "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node7", "MASTER_PORT": "1234"}
    assert read_environment(variables) == DistributedEnvironment(3, 1, 4, 2, "node7", 1234, "env")


def test_master_has_defaults():
    place = read_environment(LAUNCHED)
    assert (place.master_addr, place.master_port) == ("localhost", 29500)


@pytest.mark.parametrize("part", PARTS, ids="+".join)
def test_half_a_launcher_is_an_error_that_names_what_is_missing(part):
    with pytest.raises(ValueError, match="half of a launcher's environment") as caught:
        read_environment({name: LAUNCHED[name] for name in part})
    text = str(caught.value)
    for name in LAUNCHER_VARIABLES:
        assert (f"no {name}" in text) == (name not in part)
        assert (f"{name}={LAUNCHED[name]}" in text) == (name in part)
    assert "torchrun" in text


def test_an_empty_variable_is_an_unset_one():
    assert read_environment({name: "" for name in LAUNCHER_VARIABLES}).launcher == "none"
    with pytest.raises(ValueError, match="no LOCAL_RANK"):
        read_environment({**LAUNCHED, "LOCAL_RANK": ""})


@pytest.mark.parametrize(
    "change",
    [
        {"RANK": "4"},
        {"RANK": "-1"},
        {"WORLD_SIZE": "0"},
        {"LOCAL_RANK": "-1"},
        {"RANK": "0", "LOCAL_RANK": "1"},
    ],
    ids=str,
)
def test_contradictions_are_refused_with_the_values(change):
    variables = {**LAUNCHED, **change}
    with pytest.raises(ValueError, match="contradictory launcher environment") as caught:
        read_environment(variables)
    assert all(f"{name}={variables[name]}" in str(caught.value) for name in LAUNCHER_VARIABLES)


@pytest.mark.parametrize("name", [*LAUNCHER_VARIABLES, "LOCAL_WORLD_SIZE", "MASTER_PORT"])
def test_a_variable_that_is_not_a_number_is_reported(name):
    with pytest.raises(ValueError, match=f"{name} must be a whole number, got 'two'"):
        read_environment({**LAUNCHED, name: "two"})


def test_slurm_step():
    place = read_environment(SRUN)
    assert place == DistributedEnvironment(3, 1, 4, 2, "gpu07", 15000 + 123456 % 15000, "slurm")


def test_slurm_ports_of_two_jobs_differ_and_stay_below_the_ephemeral_range():
    ports = {read_environment({**SRUN, "SLURM_JOB_ID": str(job)}).master_port for job in range(10**6, 10**6 + 50)}
    assert len(ports) == 50
    assert all(1024 < port < 32768 for port in ports)


def test_slurm_master_can_be_chosen():
    place = read_environment({**SRUN, "MASTER_ADDR": "head", "MASTER_PORT": "555"})
    assert (place.master_addr, place.master_port) == ("head", 555)


def test_slurm_batch_script_runs_one_process():
    # sbatch sets these in the script itself, where nothing has been started yet by srun.
    batch = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    assert read_environment(batch) == DistributedEnvironment()
    # Newer versions run the script as a step of one task, and keep the allocation's task count.
    assert read_environment({**batch, "SLURM_STEP_ID": "4294967291", "SLURM_STEP_NUM_TASKS": "1"}).launcher == "none"


def test_launcher_variables_win_over_slurm():
    assert read_environment({**SRUN, **LAUNCHED}).launcher == "env"


@pytest.mark.parametrize("name", ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"])
def test_a_slurm_variable_that_is_not_a_number_is_reported(name):
    with pytest.raises(ValueError, match=f"{name} must be a whole number, got 'x'"):
        read_environment({**SRUN, name: "x"})


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("node1", "node1"),
        ("a,b", "a"),
        ("gpu[01-03,7],login", "gpu01"),
        ("n[8-11]", "n8"),
        ("n[099-101]", "n099"),
        ("r[1-2]c[1,3]", "r1c1"),
        ("r[1-2]-ib", "r1-ib"),
        ("a[1-2],b[3],c", "a1"),
    ],
)
def test_the_first_host_of_a_slurm_nodelist(nodelist, host):
    assert read_environment({**SRUN, "SLURM_STEP_NODELIST": nodelist}).master_addr == host


@pytest.mark.parametrize("variables", [{}, LAUNCHED, SRUN], ids=["none", "env", "slurm"])
def test_reading_changes_nothing(variables):
    before = dict(os.environ)
    read_only = MappingProxyType(variables)
    assert read_environment(read_only) == read_environment(read_only)
    assert dict(os.environ) == before
