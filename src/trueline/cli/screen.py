"""The console of every verb: nothing that a Run or a file holds steers the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console as RichConsole
from rich.segment import Segment

from trueline.render.wording import visible


class Console(RichConsole):
    """rich's, whose texts are made harmless before they are styled."""

    def render(self, *args: Any, **kwargs: Any) -> Iterable[Segment]:
        """The segments of a renderable, without control characters in their texts."""
        for segment in super().render(*args, **kwargs):
            yield segment if segment.control else Segment(str(visible(segment.text)), segment.style)
