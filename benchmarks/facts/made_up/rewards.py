"""A made-up reward, as trl calls it."""

from typing import Any


def variety(completions: list[Any], **settings: Any) -> list[float]:
    """How many different words each completion has."""
    del settings
    texts = [completion if isinstance(completion, str) else completion[0]["content"] for completion in completions]
    return [float(len(set(text.split()))) for text in texts]
