"""Pages show what users see: facts have the base rates that ship."""

import pytest


@pytest.fixture(autouse=True)
def _nothing_is_unusual() -> None:
    """In place of the fixture that leaves base rates out."""
