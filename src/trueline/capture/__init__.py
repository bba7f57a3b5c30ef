"""Watches a model while it trains and hands what it measured to the Sink it was given."""

from __future__ import annotations

import sys

from trueline.schema.errors import CaptureError

OLDEST_TORCH = (2, 6)
"""The first release with all that is hooked into here."""


def require_torch(version: str) -> None:
    """Raises ``CaptureError`` for a ``version`` of torch, as ``2.13.0+cpu``, that is older than ``OLDEST_TORCH``. One
    that begins with no two numbers is a build of one's own, and taken.
    """
    parts = version.split(".")[:2]
    if len(parts) == 2 and all(part.isdecimal() for part in parts) and (*map(int, parts),) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise CaptureError(f"torch is {version} here, and watching needs {oldest} or newer. Install that.")


# the command line comes here without torch, and starts jobs of another Python: only a process that trains is asked
if "torch" in sys.modules:
    require_torch(str(getattr(sys.modules["torch"], "__version__", "")))
