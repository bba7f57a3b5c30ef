"""msProbe's ``seed_all`` over ``trueline.seed_all``."""

from __future__ import annotations

from trueline.capture import seeding
from trueline.capture.seeding import SeedReport
from trueline.schema.errors import InputError


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False, is_enhanced: bool = False) -> SeedReport:
    """Seed every stream; ``mode`` asks for deterministic algorithms, ``rm_dropout`` turns dropout off.

    Unlike msProbe's, it returns a report, leaves torch's deterministic mode as it is without ``mode``, and turns
    dropout off for modules that were made before, too. Raises ``InputError`` for ``is_enhanced``.
    """
    if is_enhanced:
        raise InputError(
            "is_enhanced=True is not supported: with it every call of a random function returns the same numbers, "
            "which changes what is trained. Leave it out; two runs of one seed draw the same numbers without it."
        )
    for name, value in (("mode", mode), ("rm_dropout", rm_dropout)):
        if not isinstance(value, bool):
            raise InputError(f"{name} is {value!r}. Pass True or False.")
    return seeding.seed_all(seed, deterministic=mode, dropout=False if rm_dropout else None)
