"""Settings of the form KEY=VALUE as they are given on the command line: keys of a plan, and what was declared of
rollouts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


def sampling_of(settings: Iterable[str]) -> dict[str, Any]:
    """What ``--sampling NAME=VALUE`` declares of rollouts; a value is JSON, or text. Raises ``InputError``."""
    from trueline.schema.columns.rollouts import SAMPLING
    from trueline.schema.errors import InputError
    from trueline.schema.text.reading import shortened

    declared: dict[str, Any] = {}
    for setting in settings:
        name, sign, text = (part.strip() for part in setting.partition("="))
        if not sign or not text:
            raise InputError(f"'--sampling {shortened(setting)}' has no value. Write NAME=VALUE, as temperature=0.7.")
        if name not in SAMPLING:
            raise InputError(
                f"'--sampling {shortened(setting)}': there is no {name!r}. There are {', '.join(SAMPLING)}."
            )
        try:
            declared[name] = json.loads(text)
        except ValueError:
            declared[name] = text
    return declared


def key_and_value(change: str) -> tuple[str, Any]:
    """Key and value of ``KEY=VALUE``: lists have commas, ``steps`` is FIRST:END or one step, and nothing is the
    default. Anything may also be written as JSON.
    """
    from trueline.schema.errors import PlanError
    from trueline.schema.plan import Plan
    from trueline.schema.text.documents import parsed
    from trueline.schema.text.reading import shortened

    key, sign, text = change.partition("=")
    key = key.strip()
    if not sign:
        raise PlanError(f"'--set {shortened(change)}' has no '='. Write KEY=VALUE, for example --set preset=mix.")
    text = text.strip()
    field = Plan.model_fields.get(key)
    if field is None:
        return key, text  # named as unknown when the Plan is validated
    if not text:
        return key, field.default
    if text[0] in "[{":
        try:
            return key, parsed(text)
        except ValueError as error:
            sign = shortened(change)
            raise PlanError(f"'--set {sign}' cannot be parsed: {error}. Write {key}=a,b or a JSON list.") from None
    return key, [part.strip() for part in text.split(",")] if _is_list(key) else text


def _is_list(key: str) -> bool:
    from trueline.schema.plan import Plan

    schema = Plan.model_json_schema()["properties"][key]
    kinds = {kind.get("type") for kind in schema.get("anyOf", [schema])}
    return "array" in kinds and "string" not in kinds
