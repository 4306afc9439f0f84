"""What torchrun, accelerate, srun and mpirun say of the processes that they start."""

import os
from pathlib import Path

import pytest

from muster import dist
from muster.errors import ConfigError
from muster.launched import first_host, is_launched, local_rank, local_size, meeting, num_launched
from muster.run import run
from muster.store import read_meta
from ranks_of import assert_same_run, on_ranks
from toy_run import config_for

STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "11",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2),3",
    "SLURM_STEP_NODELIST": "gpu[07-09]",
    "SLURM_PROCID": "9",
    "SLURM_NODEID": "2",
    "SLURM_LOCALID": "1",
}
"""The tenth of eleven tasks that one `srun` started on three machines."""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch):
    """Sets what a launcher says, in an environment where none has said anything."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "PMI_", "ACCELERATE_", "LOCAL_", "MASTER_")):
            monkeypatch.delenv(name)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def say(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return say


def test_the_tasks_of_a_slurm_step_are_ranks_of_one_run(told):
    told(**STEP)
    assert (is_launched(), num_launched(), local_rank(), local_size()) == (True, 11, 1, 3)
    # 10000 + (16 * 4711 + 2) % 20000
    assert meeting() == "tcp://gpu07:25378?rank=9&world_size=11"
    told(SLURM_NODEID="1")
    assert local_size() == 4
    told(MASTER_ADDR="10.0.0.1", MASTER_PORT="29500")
    assert meeting() == "tcp://10.0.0.1:29500?rank=9&world_size=11"


def test_a_batch_script_a_shell_and_a_step_of_one_task_are_one_process(told):
    script = {"SLURM_JOB_ID": "4711", "SLURM_NTASKS": "8", "SLURM_TASKS_PER_NODE": "8", "SLURM_PROCID": "0"}
    told(**script)
    assert (is_launched(), local_size()) == (False, 1)
    told(SLURM_STEP_NUM_TASKS="1", SLURM_STEP_TASKS_PER_NODE="1", PMI_SIZE="1")
    assert (is_launched(), local_rank(), local_size()) == (False, 0, 1)


def test_a_shell_of_salloc_is_one_process_whatever_step_it_came_from(told):
    told(SLURM_JOB_ID="4711", SLURM_NTASKS="8", SLURM_STEP_NUM_TASKS="8")
    assert not is_launched()


def test_what_torchrun_says_goes_before_what_slurm_says(told):
    told(**STEP, RANK="5", WORLD_SIZE="24", LOCAL_RANK="5", LOCAL_WORLD_SIZE="8")
    assert (num_launched(), local_rank(), local_size(), meeting()) == (24, 5, 8, "env://")
    # With this each task trains a run of its own.
    told(WORLD_SIZE="1")
    assert (is_launched(), local_size()) == (False, 1)


def test_what_is_exported_for_each_task_is_completed_by_slurm(told):
    told(**STEP, RANK="9", WORLD_SIZE="11")
    assert (local_rank(), local_size()) == (1, 3)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SLURM_NTASKS_PER_NODE": "4"}, 4),
        ({"SLURM_TASKS_PER_NODE": "2(x4)", "SLURM_NODEID": "3"}, 2),
        # Nobody says: a share of the memory that is too small is slow, one that is too large is killed.
        ({}, 8),
    ],
)
def test_processes_of_this_machine_are_counted_by_whoever_knows(told, variables, expected):
    told(RANK="3", WORLD_SIZE="8", **variables)
    assert local_size() == expected


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("gpu7", "gpu7"),
        ("login,gpu[1-3]", "login"),
        ("gpu[07-09,12],cpu1", "gpu07"),
        ("gpu[12,14-15]", "gpu12"),
        ("rack[0-3]node[10-19].site", "rack0node10.site"),
    ],
)
def test_the_first_machine_of_slurms_list_is_where_tasks_meet(nodes: str, expected: str):
    assert first_host(nodes) == expected


def test_a_list_that_slurm_did_not_write_is_refused(told):
    told(**{**STEP, "SLURM_STEP_NODELIST": "", "SLURM_STEP_TASKS_PER_NODE": "four"})
    with pytest.raises(ConfigError, match=r"SLURM_STEP_NODELIST is .., which .* export MASTER_ADDR"):
        meeting()
    with pytest.raises(ConfigError, match=r"SLURM_STEP_TASKS_PER_NODE is 'four' .* LOCAL_WORLD_SIZE"):
        local_size()


def test_processes_that_would_each_train_a_copy_are_refused(told):
    told(OMPI_COMM_WORLD_SIZE="4")
    with pytest.raises(ConfigError, match=r"mpirun started 4 .*RANK=\$OMPI_COMM_WORLD_RANK and WORLD_SIZE="):
        is_launched()
    told(OMPI_COMM_WORLD_SIZE="1", PMI_SIZE="11", **STEP)
    assert num_launched() == 11, "PMI's processes are the very tasks of srun"
    told(PMI_SIZE="16")
    with pytest.raises(ConfigError, match=r"mpirun started 16 processes \(PMI_SIZE\)"):
        is_launched()
    told(PMI_SIZE="16", WORLD_SIZE="1")
    assert not is_launched()


def test_accelerate_that_starts_one_process_instead_of_several_is_noticed(told):
    # As `accelerate launch --cpu --num_processes 2` leaves it.
    told(ACCELERATE_USE_CPU="True", MASTER_ADDR="127.0.0.1")
    assert not is_launched()
    told(MASTER_PORT="29500")
    with pytest.raises(ConfigError, match=r"told to start several processes and started one.*--multi_gpu"):
        is_launched()


def as_task(number: int) -> None:
    """Makes a rank that torchrun might have started a task that srun has."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"):
        del os.environ[name]
    both = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "localhost"}
    mine = {"SLURM_PROCID": str(number), "SLURM_LOCALID": str(number), "SLURM_NODEID": "0"}
    os.environ.update({**STEP, **both, **mine})


def test_two_tasks_of_srun_train_one_run(place: Path, tmp_path: Path):
    one, two = (config_for(place, tmp_path / name) for name in ("one", "two"))
    list(run(one))

    def work(number: int) -> None:
        as_task(number)
        list(run(two))

    assert on_ranks(2, tmp_path / "log", work) == [0, 0]
    assert read_meta(tmp_path / "two" / "toy")["ranks"] == 2
    assert_same_run(tmp_path / "one" / "toy", tmp_path / "two" / "toy")


def test_ranks_that_are_told_to_train_otherwise_are_refused_by_all(place: Path, tmp_path: Path):
    files = [config_for(place, tmp_path, run={"steps": steps}) for steps in (2, 3)]

    def work(number: int) -> None:
        with dist.joined(), pytest.raises(ConfigError) as caught:
            list(run(files[number]))
        print(caught.value)

    assert on_ranks(2, tmp_path / "log", work) == [0, 0]
    said = {(tmp_path / f"log.{number}").read_text() for number in range(2)}
    assert len(said) == 1
    assert "rank 1 was started to train otherwise than rank 0: it has ['steps = 3'], and rank 0" in said.pop()
