"""What is measured is kept as JSON, part by part, with what it was measured on."""

import json
import platform
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from company import Watch
from muster.files import write_atomic
from workloads import ROOT

RESULTS = ROOT / "bench" / "results"
PACKAGES = ("muster-rl", "trl", "torch", "transformers", "peft", "accelerate", "datasets", "numpy")

Data = dict[str, object]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the command line says of all parts."""

    model: str
    """A folder that transformers reads."""
    model_name: str
    """What the reader of the results is told."""
    rounds: int | None
    """Of every part; None leaves each part its own number."""
    max_steps: int
    """After which the part `target` gives up."""
    threads: int
    results: Path
    work: Path
    """For data, jobs, logs and runs; nothing in it is kept."""
    again: bool
    """Measure also what there is a result of."""
    watch: Watch
    """Started with the part."""

    def rounds_or(self, default: int) -> int:
        """The rounds asked for, or the part's own number."""
        return self.rounds or default


def say(text: str) -> None:
    """A line about what is being done, with the time."""
    print(f"{datetime.now():%H:%M:%S} {text}", flush=True)


def load(results: Path, part: str) -> Data | None:
    """What the part measured; None where it has not run yet."""
    path = results / f"{part}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def save(settings: Settings, part: str, data: Data) -> None:
    """Writes what the part has measured so far, and on what."""
    settings.results.mkdir(parents=True, exist_ok=True)
    content = {**data, "measured_on": circumstances(settings)}
    text = json.dumps(content, indent=1) + "\n"
    write_atomic(settings.results / f"{part}.json", text.encode("utf-8"))


def circumstances(settings: Settings) -> Data:
    """Versions, processor, threads, model, day and command."""
    return {
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": settings.threads,
        "memory_bytes": memory_bytes(),
        "model": settings.model_name,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "others_share": settings.watch.others_share(),
        "command": "python bench/run.py " + " ".join(sys.argv[1:]),
    }


def processor() -> str:
    """The processor's name, as Linux has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} processors" if names else platform.machine()


def memory_bytes() -> int | None:
    """Memory of the machine; None where there is no /proc."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return int(lines[0].split()[1]) * 1024
