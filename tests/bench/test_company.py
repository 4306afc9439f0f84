"""What else ran while something was measured."""

import time
from pathlib import Path

from company import Watch, machine_busy_s, own_s


def test_the_machine_is_busy_where_it_neither_idles_nor_waits_for_a_disk(tmp_path: Path):
    stat = tmp_path / "stat"
    # user nice system idle iowait irq softirq steal guest guest_nice, in hundredths of a second
    stat.write_text("cpu  100 50 30 900 400 5 10 5 70 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n", encoding="utf-8")
    assert machine_busy_s(stat) == 2.0
    assert machine_busy_s(tmp_path / "none") is None


def test_a_process_of_its_own_counts_its_work_as_its_own():
    before, end = own_s(), time.perf_counter() + 0.1
    while time.perf_counter() < end:
        pass
    assert own_s() > before


def test_without_a_clock_of_the_machine_the_share_of_others_is_not_known():
    assert Watch(time.perf_counter(), None, own_s()).others_share() is None
