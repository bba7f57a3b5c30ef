"""What watching costs is CPU time and what it waits for itself; a core that others have is no cost of ours."""

from __future__ import annotations

import time

import pytest

from trueline.capture.step.own_time import OwnTime, blocked_count


class Host:
    """A machine whose clocks stand still until something is done on it."""

    def __init__(self):
        self.cpu = self.wall = 0.0
        self.blocks = 0
        self.time = OwnTime(cpu_s=lambda: self.cpu, wall_s=lambda: self.wall, blocked=lambda: self.blocks)

    def compute(self, seconds, *, share=1.0):
        """Work that gets only a share of a core."""
        self.cpu += seconds
        self.wall += seconds / share

    def block(self, seconds):
        self.blocks += 1
        self.wall += seconds

    def watch(self, seconds, *, share=1.0, blocked=0.0):
        begin = self.time.cpu_s()
        with self.time.may_block():
            self.compute(seconds, share=share)
            if blocked:
                self.block(blocked)
        self.time.add(self.time.cpu_s() - begin)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.02])
def test_waiting_for_a_core_is_no_cost(share):
    host = Host()
    host.watch(0.01, share=share)
    host.compute(0.99, share=share)
    columns = host.time.end_step(sampled=True)
    assert columns["own_s"] == pytest.approx(0.01)
    assert columns["step_s"] == pytest.approx(1 / share)
    assert host.time.latest["sampled"] == pytest.approx(0.01)


def test_waiting_for_a_disk_a_device_or_another_rank_is():
    host = Host()
    host.watch(0.01, blocked=0.5)
    assert host.time.end_step(sampled=False)["own_s"] == pytest.approx(0.51)


def test_where_the_system_does_not_tell_every_wait_counts():
    host = Host()
    host.time = OwnTime(cpu_s=lambda: host.cpu, wall_s=lambda: host.wall, blocked=lambda: None)
    host.watch(0.01, share=0.5)
    assert host.time.end_step(sampled=False)["own_s"] == pytest.approx(0.02)


def test_this_system_tells_a_sleep_from_work():
    before = blocked_count()
    time.sleep(0.001)
    assert blocked_count() is None or blocked_count() > before
