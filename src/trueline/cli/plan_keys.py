"""Keys of a plan as they are set on the command line."""

from __future__ import annotations

from typing import Any


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
