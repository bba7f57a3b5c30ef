"""What is to follow an update waits for the framework around it."""

import pytest

from trueline.capture.model.framework_update import after_update, framework_update


def ends():
    raise SystemExit(0)


def nested(order):
    with framework_update():
        with framework_update():
            after_update(ends)
            order.append("inner")
        order.append("outer")


def failing():
    with framework_update():
        after_update(ends)
        raise ValueError("of the framework's own")


def test_without_a_framework_it_is_called_at_once():
    with pytest.raises(SystemExit):
        after_update(ends)


def test_within_updates_of_frameworks_it_is_called_after_the_outermost():
    order = []
    with pytest.raises(SystemExit):
        nested(order)
    assert order == ["inner", "outer"]


def test_an_update_that_fails_leaves_nothing_behind():
    with pytest.raises(ValueError, match="of the framework's own"):
        failing()
    with framework_update():
        pass
