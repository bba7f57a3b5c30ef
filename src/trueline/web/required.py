"""Whether the packages that serve the page are installed."""

from __future__ import annotations

from trueline.schema.errors import InputError


def require_packages() -> None:
    """Raise ``InputError`` where a package of the page is missing."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise InputError(f"The page needs {error.name}, which is missing here: pip install 'trueline[view]'.") from None
