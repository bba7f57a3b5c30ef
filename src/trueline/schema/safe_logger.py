"""The log of Trueline inside of somebody else's process, whose handlers and filters may raise."""

from __future__ import annotations

import contextlib
import logging
from typing import Any


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """The logger of a name, whose calls never raise an Exception, whatever handlers and filters the user has put on."""

    def __init__(self, name: str = "trueline") -> None:
        super().__init__(logging.getLogger(name))

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """As ``Logger.log``, where it can be."""
        with contextlib.suppress(Exception):
            options: dict[str, Any] = {"stacklevel": 3} | kwargs
            super().log(level, msg, *args, **options)
