"""What is around our own work: once in each thread, whatever is inside of what."""

import threading

import pytest

from trueline.capture.record.make_session import Idle
from trueline.capture.step.working_parts import WorkingParts


class Paused(Idle):
    """Counts how often it is told that what follows is ours."""

    depth = pauses = 0

    def pause(self):
        self.depth += 1
        self.pauses += 1

    def resume(self):
        self.depth -= 1


@pytest.fixture
def parts():
    failed = []
    one = WorkingParts(lambda part, error: failed.append((part, type(error))))
    one.session, one.failed = Paused(), failed
    yield one
    one.close()


def test_our_work_in_two_threads_at_once_is_each_ones_own(parts):
    counted = []
    parts.time.add = counted.append

    def look_at_a_result():
        with parts.guarded("gradients"), parts.guarded("gradients"):
            assert parts.session.depth == 2

    with parts.guarded("exchange"):
        thread = threading.Thread(target=look_at_a_result)
        thread.start()
        thread.join()
        assert parts.session.depth == 1
    assert (parts.session.depth, parts.session.pauses, len(counted)) == (0, 2, 2)
    assert parts.failed == []


def test_a_part_ends_once_and_by_name_whatever_it_is_inside_of(parts):
    let_go = []
    parts.let_go = let_go.append
    for _ in range(2):
        with parts.guarded("row"), parts.guarded("loss"):
            raise ZeroDivisionError
    assert parts.failed == [("loss", ZeroDivisionError)]
    assert let_go == ["loss"]
    assert parts.works("row")
    assert not parts.works("loss")
    assert parts.session.depth == 0
