"""What ended a training is told with the user's own line, whoever raised it."""

import json
from types import SimpleNamespace

import pytest

from trueline.capture.step.description import Description
from trueline.capture.step.exchange import Team
from trueline.schema.files.start import FIRST
from trueline.tensor.digest import digest_rows


def by_pythons_library():
    json.loads("{")


def by_trueline():
    digest_rows(None)


@pytest.mark.parametrize("raises", [by_pythons_library, by_trueline])
def test_the_line_is_the_users_own(raises):
    sent = []
    safe_sink = SimpleNamespace(describe=lambda manifest, env: sent.append(env))
    team = Team(ranks=(0,), rank=0, group=None)
    facts = {"start": FIRST, "adapter": None, "team": team, "safe_sink": safe_sink}
    description = Description(SimpleNamespace(**facts))
    with pytest.raises(Exception) as caught:  # noqa: PT011
        raises()
    description.note_raised(caught.value)
    assert sent[-1].raised == f"{caught.type.__name__} at test_description.py:{raises.__code__.co_firstlineno + 1}"
