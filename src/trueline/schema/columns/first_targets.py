"""What a row of the column ``first_targets`` holds, for who writes it and who reads it."""

from __future__ import annotations

from dataclasses import dataclass

from trueline.schema.columns.pass_numbers import PassNumbers


@dataclass(frozen=True, slots=True)
class FirstTargets(PassNumbers):
    """Of a forward pass over token ids [B, T] whose targets are next tokens: where the targets that count begin.

    ``rows`` have a target behind one attended token or more, ``least`` to ``greatest`` of these. The token directly in
    front of the first target is ``before`` in ``before_rows``, most of them, and the one in front of that is ``second``
    in ``second_rows``. In ``trained_rows`` the token directly in front is a target of this pass elsewhere. In
    ``whole_rows`` the last target is the last attended token, in ``past_rows`` it stands behind it.
    """

    rows: int
    least: int
    greatest: int
    before: int
    before_rows: int
    second: int
    second_rows: int
    trained_rows: int
    whole_rows: int
    past_rows: int
