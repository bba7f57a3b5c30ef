"""The trial of a job that a user asks for, of whatever verb."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from trueline.schema.errors import InputError
from trueline.schema.trial_verbs import VERBS
from trueline.trials.frame.asked import Asked, Prepared


def prepared(asked: Asked, **options: Any) -> Prepared:
    """The trial of the verb that is asked for, with ``options`` of its own. Raises ``InputError``, also for what the
    verb does not take.
    """
    verb = VERBS.get(asked.verb)
    if verb is None:
        raise InputError(f"There is no trial '{asked.verb}' of a job; there are {', '.join(VERBS)}.")
    usual = Asked(asked.verb)
    if foreign := [name for name in sorted(verb.lacks) if getattr(asked, name) != getattr(usual, name)]:
        raise InputError(f"Trial {asked.verb} takes no {foreign[0]}. Leave it out.")
    if verb.about_run != bool(asked.run):
        needs = "is about a Run: name one" if verb.about_run else "is about a command alone: name no Run"
        raise InputError(f"Trial {asked.verb} {needs}.")
    # of all verbs the module of this one alone is loaded
    prepare = importlib.import_module(f"trueline.trials.{verb.module}").prepare
    signature = inspect.signature(prepare)
    try:
        signature.bind(asked, **options)
    except TypeError as error:
        raise InputError(f"Trial {asked.verb}: {error}. It takes {signature}.") from None
    return prepare(asked, **options)
