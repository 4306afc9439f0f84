"""What a launcher told this process of the others that it started: torchrun, accelerate or srun.

`WORLD_SIZE` settles it, whoever set it. Without it the tasks of a Slurm step that has several are the ranks
of one run: Slurm numbers them and names their machines. A batch script, a shell of `salloc` and a step of
one task are one process, however many tasks their job may start.
"""

import os
import re

from muster.errors import ConfigError

FIRST_PORT, NUM_PORTS = 10_000, 20_000
"""Where the tasks of a Slurm step meet: below the ports that Linux gives out by itself."""
STEPS_A_JOB = 16
"""Steps of a job, and jobs of a machine, that run at once mostly meet at ports of their own."""


def is_launched() -> bool:
    """Whether a launcher started this process as one of several."""
    return num_launched() > 1


def num_launched() -> int:
    """How many processes were started to train together, on all machines.

    Raises ConfigError where a launcher started several, or was to, and did not say how they find each other:
    each would train a copy of its own.
    """
    if os.environ.get("WORLD_SIZE"):
        return _number("WORLD_SIZE", 1)
    tasks = _number("SLURM_STEP_NUM_TASKS", 1) if os.environ.get("SLURM_PROCID") else 1
    _refuse_mpi(tasks)
    if tasks == 1 and os.environ.get("ACCELERATE_USE_CPU") and os.environ.get("MASTER_PORT"):
        raise ConfigError(
            "accelerate launch was told to start several processes and started one: without --multi_gpu that "
            "is all it does. Add --multi_gpu, on a machine without a GPU too (the run picks its device), or "
            "use torchrun. Where one process is meant, MASTER_PORT is exported for nothing: unset it, or set "
            "WORLD_SIZE=1."
        )
    return tasks


def meeting() -> str:
    """Where the processes find each other, as the address that torch's rendezvous takes."""
    if os.environ.get("WORLD_SIZE"):
        return "env://"
    host = os.environ.get("MASTER_ADDR") or first_host(os.environ.get("SLURM_STEP_NODELIST", ""))
    step = STEPS_A_JOB * _number("SLURM_JOB_ID", 0) + _number("SLURM_STEP_ID", 0)
    port = _number("MASTER_PORT", FIRST_PORT + step % NUM_PORTS)
    return f"tcp://{host}:{port}?rank={_number('SLURM_PROCID', 0)}&world_size={num_launched()}"


def local_rank() -> int:
    """Which of its machine's processes this one is."""
    return _number("LOCAL_RANK", _number("SLURM_LOCALID", 0))


def local_size() -> int:
    """How many of the processes run on this machine; all of them, where nobody says."""
    if not is_launched():
        return 1
    return _number("LOCAL_WORLD_SIZE", 0) or _tasks_here() or num_launched()


def first_host(nodes: str) -> str:
    """The first machine of a list as Slurm shortens it: of `gpu[07-09,12],cpu1` it is `gpu07`."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    if first is None:
        raise ConfigError(
            f"SLURM_STEP_NODELIST is {nodes!r}, which names no machine where tasks could meet. Start them "
            "by srun, or export MASTER_ADDR."
        )
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first[0])


def _tasks_here() -> int:
    """Tasks of the Slurm step on this machine; 0 where Slurm says nothing."""
    for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        if text := os.environ.get(name):
            counts, node = _counts(name, text), _number("SLURM_NODEID", 0)
            return counts[node] if node < len(counts) else max(counts)
    return _number("SLURM_NTASKS_PER_NODE", 0)


def _counts(name: str, text: str) -> list[int]:
    """The numbers of a list as Slurm shortens it: `4(x2),3` is four twice, then three."""
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            raise ConfigError(
                f"the environment variable {name} is {text!r} instead of numbers as Slurm writes them, say "
                "4(x2),3. Export LOCAL_WORLD_SIZE, the number of tasks on this machine."
            )
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def _refuse_mpi(tasks: int) -> None:
    """Refuses processes of mpirun, unless they are the very tasks that Slurm counts."""
    for its in ("OMPI_COMM_WORLD_", "PMI_"):
        started = _number(f"{its}SIZE", 1)
        # Under Slurm mpirun has a task of its own on each machine, which says nothing of its processes.
        if started > 1 and started != tasks:
            raise ConfigError(
                f"mpirun started {started} processes ({its}SIZE) and does not say where they meet: each "
                f"would train a copy of its own. Export RANK=${its}RANK and WORLD_SIZE=${its}SIZE for each, "
                "LOCAL_RANK and LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or use torchrun or srun; "
                "WORLD_SIZE=1 trains each alone."
            )


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    if not text:
        return default
    if not text.isdigit():
        raise ConfigError(
            f"the environment variable {name} is {text!r} instead of a whole number. A launcher such as "
            "torchrun sets it; unset it to train in one process."
        )
    return int(text)
