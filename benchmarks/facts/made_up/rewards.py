"""A made-up reward, as trl calls it."""

from typing import Any


def variety(completions: list[Any], **settings: Any) -> list[float]:
    """How many different letters each completion has."""
    del settings
    texts = [completion if isinstance(completion, str) else completion[0]["content"] for completion in completions]
    return [float(len(set(text))) for text in texts]
