"""Keeps memory that tensors gave up, instead of giving it back to the system between two uses.

By default glibc gives the pages of every large tensor back when it is freed, so that the next one
of its size faults them in again, one by one: a third of an update's time on a CPU.
"""

import ctypes
import os
import sys

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST = 2**31 - 1
_OLD_LARGEST = 32 * 2**20
"""What versions of glibc before 2.35 take at most."""
_CHOSEN_BY_USER = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Raises glibc's thresholds for the rest of the process; False, and nothing is done, elsewhere.

    What is freed stays with the process, so its size is that of its largest moment. Environment
    variables that set the thresholds win.
    """
    if sys.platform != "linux" or any(name in os.environ for name in _CHOSEN_BY_USER):
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    is_set = set_option(_M_MMAP_THRESHOLD, _LARGEST) or set_option(_M_MMAP_THRESHOLD, _OLD_LARGEST)
    return bool(is_set and set_option(_M_TRIM_THRESHOLD, -1))
