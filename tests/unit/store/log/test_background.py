"""The thread that writes: in order, within its bound of bytes, and never silent about what it met."""

import threading
import time

import pytest

from trueline.store.log.background import Background


class Gate:
    """Handles items only once it is open."""

    def __init__(self):
        self.open = threading.Event()
        self.entered = threading.Event()
        self.done = []

    def __call__(self, item):
        self.entered.set()
        assert self.open.wait(60)
        if isinstance(item, Exception):
            raise item
        self.done.append(item)


def test_items_are_handled_in_order():
    gate = Gate()
    gate.open.set()
    background = Background(gate)
    for item in range(200):
        background.enqueue(item, 1)
    background.drain()
    assert gate.done == list(range(200))
    background.close()
    assert not background._thread.is_alive()


def test_put_waits_while_more_than_the_bound_is_held():
    gate = Gate()
    background = Background(gate, max_bytes=100)
    background.enqueue("a", 60)
    background.enqueue("b", 40)
    late = threading.Thread(target=background.enqueue, args=("c", 1))
    late.start()
    assert gate.entered.wait(60)
    time.sleep(0.05)
    assert late.is_alive()
    assert background._held_bytes == 100
    gate.open.set()
    late.join(60)
    background.close()
    assert gate.done == ["a", "b", "c"]


def test_an_item_above_the_bound_goes_alone():
    gate = Gate()
    gate.open.set()
    background = Background(gate, max_bytes=10)
    for item in ("a", "b"):
        background.enqueue(item, 1000)
    background.close()
    assert gate.done == ["a", "b"]


def test_an_error_comes_out_once_and_costs_its_item_alone():
    gate = Gate()
    gate.open.set()
    background = Background(gate)
    background.enqueue("a", 1)
    background.enqueue(OSError("full"), 1)
    background.drain()
    with pytest.raises(OSError, match="full"):
        background.enqueue("c", 1)
    background.enqueue("d", 1)
    background.close()
    assert gate.done == ["a", "d"]


def test_an_error_of_the_last_item_comes_out_of_close():
    gate = Gate()
    background = Background(gate)
    background.enqueue(OSError("full"), 1)
    gate.open.set()
    with pytest.raises(OSError, match="full"):
        background.close()
    assert not background._thread.is_alive()


def test_an_error_wakes_who_waits_for_room():
    gate = Gate()
    background = Background(gate, max_bytes=1)
    background.enqueue(OSError("full"), 1)
    met = []

    def wait():
        try:
            background.enqueue("a", 1)
        except OSError as error:
            met.append(str(error))

    late = threading.Thread(target=wait)
    late.start()
    gate.open.set()
    late.join(60)
    assert met == ["full"]
    background.close()
