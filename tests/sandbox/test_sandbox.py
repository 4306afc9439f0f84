"""Hostile programs under every isolation that works here; each states what holds and what does not."""

import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from muster.errors import RewardError
from muster.sandbox import Isolation, Limits, candidates, find_isolation, isolation, run_program

MIB = 2**20


def works(candidate: Isolation) -> bool:
    try:
        return run_program({"program.py": "print(1)"}, isolation=candidate).stdout == "1\n"
    except OSError:
        return False


WORKING = [candidate for candidate in candidates() if works(candidate)]
WALLS = [
    next(filter(lambda one, has=has: (one.bubblewrap is not None) == has, WORKING), None)
    for has in (True, False)
]
SHORT = Limits(wall_s=5.0)


@pytest.fixture(
    params=[wall for wall in WALLS if wall], ids=lambda wall: "bubblewrap" if wall.bubblewrap else "plain"
)
def walls(request):
    return request.param


def ran(walls, program, *, stdin=None, limits=SHORT, **files):
    return run_program({"program.py": program, **files}, stdin=stdin, limits=limits, isolation=walls)


def left_alive(marker: str) -> list[str]:
    """Processes whose command line holds the text, ten seconds after they were to be gone."""
    deadline = time.monotonic() + 10
    while (found := alive(marker)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def alive(marker: str) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if marker in line and int(folder.name) != os.getpid():
            found.append(line)
    return found


def test_some_isolation_is_in_force_and_says_what_does_not_hold():
    assert WORKING
    text = isolation()
    assert ("no network" in text) == (find_isolation().bubblewrap is not None)
    if find_isolation().bubblewrap is None:
        assert "NOT isolated: network" in text


def test_the_weaker_isolation_names_its_gaps():
    plain = Isolation(bubblewrap=None, first_user=None, python=sys.executable)
    assert "YOUR user" in str(plain)
    assert "signals to your other processes" in str(plain)
    assert "a user of its own" in str(replace(plain, first_user=2_000_000_000))


def test_a_demand_for_bubblewrap_is_met_or_refused():
    if find_isolation().bubblewrap:
        assert find_isolation("bubblewrap").bubblewrap
    else:
        with pytest.raises(RewardError, match="bubblewrap only"):
            find_isolation("bubblewrap")


def test_what_a_program_prints_and_how_it_ends_come_back(walls):
    outcome = ran(walls, "import sys; print(sys.stdin.read()[::-1]); sys.exit(3)", stdin="abc")
    assert (outcome.ending, outcome.code, outcome.stdout) == ("exit", 3, "cba\n")
    assert not outcome.is_success


def test_a_program_without_input_reads_end_of_file(walls):
    assert ran(walls, "import sys; print(repr(sys.stdin.read()))").stdout == "''\n"


def test_standard_input_can_be_opened_by_name(walls):
    assert ran(walls, "print(open('/dev/stdin').read())", stdin="abc").stdout == "abc\n"


def test_the_environment_is_empty(walls, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret-7")
    program = "import os, pathlib\nprint(sorted(os.environ))\nprint('secret-7' in str(os.environ))"
    names, leaked = ran(walls, program).stdout.splitlines()
    assert leaked == "False"
    assert set(names.strip("[]").replace("'", "").split(", ")) <= {"HOME", "LANG", "PATH", "PWD"}


def test_the_environment_of_other_processes_cannot_be_read(walls):
    program = (
        "import os\nfound = b''\n"
        "for pid in os.listdir('/proc'):\n"
        "    try: found += open(f'/proc/{pid}/environ', 'rb').read()\n"
        "    except OSError: pass\n"
        "print(b'MUSTER_SECRET_9' in found)"
    )
    child = subprocess.Popen(["sleep", "30"], env={"MUSTER_SECRET_9": "x"})
    try:
        is_read = ran(walls, program).stdout == "True\n"
    finally:
        child.kill()
        child.wait()
    assert is_read == (walls.bubblewrap is None and walls.first_user is None)


def test_the_network_is_out_of_reach_under_bubblewrap_only(walls):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        program = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2); print('connected')"
        outcome = ran(walls, program)
    assert outcome.stdout == ("" if walls.bubblewrap else "connected\n")


def test_no_descriptor_is_inherited(walls, tmp_path):
    with (tmp_path / "secret").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        program = (
            "import os\n"
            "def is_open(number):\n"
            "    try: os.fstat(number)\n"
            "    except OSError: return False\n"
            "    return True\n"
            "print([number for number in range(3, 64) if is_open(number)])"
        )
        assert ran(walls, program).stdout == "[]\n"


def test_files_of_a_run_are_out_of_reach_under_bubblewrap(walls, tmp_path):
    secret = tmp_path / "meta.json"
    secret.write_text("run secrets")
    secret.chmod(0o600)
    outcome = ran(walls, f"print(open({str(secret)!r}).read())")
    is_protected = walls.bubblewrap is not None or walls.first_user is not None
    assert outcome.stdout == ("" if is_protected else "run secrets\n")


def test_a_home_folder_is_not_there_under_bubblewrap(walls):
    program = f"import os; print(os.path.exists({str(Path(__file__))!r}))"
    assert not walls.bubblewrap or ran(walls, program).stdout == "False\n"


def test_nothing_outside_the_own_folder_can_be_written(walls):
    if not walls.bubblewrap and walls.first_user is None:
        pytest.skip("a plain user may write wherever the user may")
    program = (
        "import os\n"
        "for place in ('/', '/usr', '/etc', '/program', os.path.dirname(os.path.abspath(__file__))):\n"
        "    try: open(place + '/x', 'w').close()\n    except OSError: continue\n    print(place)\n"
        "open('mine', 'w').write('x'); print('wrote')"
    )
    assert ran(walls, program).stdout == "wrote\n"


def test_a_fork_bomb_is_bounded_and_leaves_nothing(walls):
    program = (
        "import os, sys, time\nmarker = 'bomb-5521'\nstarted = 0\n"
        "for _ in range(200):\n"
        "    try: pid = os.fork()\n    except OSError: break\n"
        "    if pid == 0: time.sleep(60); os._exit(0)\n"
        "    started += 1\n"
        "print(started)"
    )
    outcome = ran(walls, program, limits=replace(SHORT, num_processes=10))
    if walls.counts_others:
        assert int(outcome.stdout) < 100
    else:
        assert 5 <= int(outcome.stdout) <= 10
    assert outcome.seconds < 5
    assert left_alive("muster-program-") == []


def test_an_endless_fork_bomb_ends_with_the_clock(walls):
    outcome = ran(
        walls,
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        limits=Limits(wall_s=1.0),
    )
    assert outcome.ending == "time"
    assert outcome.seconds < 20
    assert left_alive("muster-program-") == []


def test_memory_is_bounded(walls):
    if sys.platform == "darwin":
        pytest.skip("macOS does not bound address space")
    outcome = ran(
        walls, "x = bytearray(400 * 2**20); print('got it')", limits=replace(SHORT, memory_bytes=200 * MIB)
    )
    assert outcome.stdout == ""
    assert outcome.ending == "exit"
    assert outcome.code != 0


def test_a_file_is_bounded(walls):
    program = (
        "f = open('big', 'wb')\nfor _ in range(100):\n    f.write(bytes(2**20)); f.flush()\nprint('filled')"
    )
    outcome = ran(walls, program, limits=replace(SHORT, disk_bytes=4 * MIB))
    assert outcome.stdout == ""
    assert not outcome.is_success


def test_many_files_are_bounded_under_bubblewrap(walls):
    program = (
        "wrote = 0\n"
        "try:\n    for number in range(40):\n"
        "        with open(str(number), 'wb') as f: f.write(bytes(2**20))\n        wrote += 1\n"
        "except OSError: pass\nprint(wrote)"
    )
    outcome = ran(walls, program, limits=replace(SHORT, disk_bytes=8 * MIB))
    assert int(outcome.stdout) <= 8 if walls.bubblewrap else int(outcome.stdout) == 40


def test_deep_folders_are_removed(walls):
    program = "import os\nfor _ in range(1200):\n    os.mkdir('d'); os.chdir('d')\nprint('deep')"
    ran(walls, program)
    assert list(Path("/tmp").glob("muster-program-*")) == []


def test_endless_output_is_cut(walls):
    program = "import os\nwhile True: os.write(1, b'x' * 65536)"
    outcome = ran(walls, program, limits=replace(SHORT, output_bytes=100_000))
    assert (outcome.ending, len(outcome.stdout)) == ("output", 100_000)
    assert outcome.seconds < 5


def test_output_that_is_not_text_is_kept_as_far_as_it_is(walls):
    assert ran(walls, "import os; os.write(1, b'a\\xffb\\0')").stdout == "a\ufffdb\0"


def test_signals_do_not_reach_the_parent(walls):
    if not walls.bubblewrap and walls.first_user is None:
        pytest.skip("a plain user may signal the user's processes")
    program = (
        "import os, signal\n"
        f"for target in (os.getppid(), -1, {os.getpid()}):\n"
        "    try: os.kill(target, signal.SIGKILL)\n    except OSError: pass\n"
        "print('alive')"
    )
    witness = subprocess.Popen(["sleep", "30"])
    try:
        ran(walls, program)
        assert witness.poll() is None
    finally:
        witness.kill()
        witness.wait()


def test_a_child_that_left_its_session_does_not_outlive_the_program(walls):
    program = (
        "import os, subprocess, sys\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        os.execve('/bin/sleep', ['sleep', '61.7731'], {})\n"
        "    os._exit(0)\n"
        "os.wait(); print('left')"
    )
    outcome = ran(walls, program)
    assert outcome.stdout == "left\n"
    assert left_alive("61.7731") == []


def test_a_child_that_left_its_session_does_not_outlive_the_limit(walls):
    program = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    os.execve('/bin/sleep', ['sleep', '62.9913'], {})\n"
        "time.sleep(60)"
    )
    start = time.monotonic()
    outcome = ran(walls, program, limits=Limits(wall_s=1.0))
    assert outcome.ending == "time"
    assert time.monotonic() - start < 30
    assert left_alive("62.9913") == []


def test_a_program_that_ignores_signals_is_killed(walls):
    program = (
        "import signal, time\nfor n in range(1, 32):\n"
        "    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "time.sleep(60)"
    )
    assert ran(walls, program, limits=Limits(wall_s=0.5)).ending == "time"


def test_closing_the_output_does_not_hide_a_program(walls):
    outcome = ran(walls, "import os, time\nos.close(1)\ntime.sleep(60)", limits=Limits(wall_s=0.5))
    assert outcome.ending == "time"


def test_installed_packages_are_out_of_reach(walls):
    assert ran(walls, "import numpy").code != 0


def test_a_tool_that_is_installed_but_fails_is_not_taken(tmp_path, monkeypatch):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    first = next(iter(candidates()))
    assert first.bubblewrap == str(broken)
    assert not works(first)


def test_no_descriptor_is_left_open(walls):
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        ran(walls, "print(1)")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
