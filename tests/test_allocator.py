"""The thresholds hold for a whole process, so each test asks one of its own."""

import os
import subprocess
import sys

import pytest

PROBE = """
import ctypes, resource, sys
from muster.allocator import keep_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]


def faults_of_ten_uses():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        block = libc.malloc(64 << 20)
        libc.memset(block, 1, 64 << 20)
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


print(faults_of_ten_uses(), keep_freed_memory(), faults_of_ten_uses() and faults_of_ten_uses())
"""


def _probe(**environment: str) -> list[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, env=kept | environment
    )
    return done.stdout.split()


@pytest.mark.skipif(sys.platform != "linux", reason="the thresholds are glibc's")
def test_a_large_block_is_faulted_in_once_and_not_at_every_use():
    before, is_set, after = _probe()
    assert is_set == "True"
    assert int(before) >= 10 * (64 << 20) // os.sysconf("SC_PAGE_SIZE") // 512  # pages may be huge
    assert int(after) < int(before) / 10


@pytest.mark.skipif(sys.platform != "linux", reason="the thresholds are glibc's")
def test_thresholds_from_the_environment_win():
    before, is_set, after = _probe(MALLOC_MMAP_THRESHOLD_="131072")
    assert is_set == "False"
    assert int(after) > int(before) / 2
