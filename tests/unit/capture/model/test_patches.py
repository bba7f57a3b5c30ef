"""Seams: what is patched behaves as before, also in what it says."""

import traceback
import warnings
from types import SimpleNamespace

from trueline.capture.model.patches import Patch, PatchedCall, Switch, calling, unseen


class Old:
    """Warns of itself, as constructors of torch do: the line that is shown is the caller's."""

    def __init__(self) -> None:
        warnings.warn("Old is deprecated.", FutureWarning, stacklevel=2)


def where_it_points():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Old()
    (warning,) = caught
    return warning.filename, warning.lineno


def test_a_warning_points_at_the_code_of_the_user_while_a_seam_is_listened_to():
    unpatched = where_it_points()
    heard = []
    for after in (True, False):
        patched = PatchedCall(Old, "__init__")
        patched.add(heard.append, after=after)
        assert where_it_points() == unpatched == (__file__, unpatched[1])
        patched.remove(heard.append)
    assert len(heard) == 2


def test_a_warning_points_at_the_code_of_the_user_through_a_patch():
    unpatched = where_it_points()
    patch = Patch(Old, "__init__", calling(unseen(lambda original, *args: original(*args))))
    patch.install()
    try:
        assert where_it_points() == unpatched
    finally:
        patch.remove()


def test_a_traceback_has_one_frame_of_ours_which_says_what_it_is():
    class Raises:
        def call(self):
            raise ValueError

    def frames():
        try:
            Raises().call()
        except ValueError as error:
            return traceback.extract_tb(error.__traceback__)

    unpatched = frames()
    patched = PatchedCall(Raises, "call")
    patched.add(lambda *args: None)
    caller, ours, raised = frames()
    assert [caller.filename, raised.filename] == [frame.filename for frame in unpatched] == [__file__] * 2
    assert ours.filename.startswith("<trueline only passes the call on")


def test_two_names_of_one_function_stay_two_names_of_one():
    def draw():
        return 4

    one, other, third = SimpleNamespace(draw=draw), SimpleNamespace(draw=draw), SimpleNamespace(draw=len)
    heard = []

    def listen():
        heard.append(None)

    for also in (other, third):
        patched = PatchedCall(one, "draw", also=also)
        patched.add(listen)
        assert one.draw is not draw
        assert (one.draw is other.draw, third.draw) == (also is other, len)
        assert one.draw() == other.draw() == 4
        patched.remove(listen)
        assert one.draw is other.draw is draw
    assert len(heard) == 3


def test_listeners_are_called_in_the_order_they_came_while_their_switch_is_on():
    class Called:
        def call(self):
            return "original"

    heard, switch = [], Switch()
    patched = PatchedCall(Called, "call")
    patched.add(lambda *_: heard.append("switched"), switch=switch)
    patched.add(lambda *_: heard.append("always"))
    patched.add(lambda *_: heard.append("switched, after"), after=True, switch=switch)
    for is_on in (False, True, True, False):
        switch.set(is_on)
        assert Called().call() == "original"
    both = ["switched", "always", "switched, after"]
    assert heard == ["always", *both, *both, "always"]


def test_a_switched_listener_that_raises_is_dropped_alone():
    class Called:
        def call(self):
            return "original"

    def fails(*_):
        raise ValueError

    heard, switch = [], Switch()
    patched = PatchedCall(Called, "call")
    patched.add(fails, switch=switch)
    patched.add(lambda *_: heard.append(1), switch=switch)
    switch.set(True)
    assert [Called().call(), Called().call()] == ["original"] * 2
    assert heard == [1, 1]
