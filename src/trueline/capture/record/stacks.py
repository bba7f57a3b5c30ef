"""Call stacks of the user's code, each stored once and referred to by a number."""

from __future__ import annotations

import os
import sysconfig
from types import CodeType, FrameType
from typing import Any

import torch

from trueline.schema.records import StackRecord

MAX_FRAMES = 32
"""Frames that a stack keeps, the innermost ones."""

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_SITE = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)


class Stacks:
    """Numbers for call stacks. Frames of torch, of Python's own library and of the recorder are left out: what remains
    is the training script and the libraries between it and torch.
    """

    def __init__(self) -> None:
        self.new: list[StackRecord] = []
        """Stacks seen for the first time; whoever writes them takes them out."""
        self._ids: dict[tuple[Any, ...], int] = {}
        self._frames: list[tuple[str, ...]] = []
        self._shown: dict[CodeType, bool] = {}

    def take(self, frame: FrameType | None, within: tuple[FrameType, int] | None = None) -> int:
        """The number of the stack that ends in ``frame``; ``within`` is a frame below it and the number of its stack,
        which saves the way down from there.
        """
        shown, key, base = self._shown, [], -1
        while frame is not None:
            if within is not None and frame is within[0]:
                base = within[1]
                break
            code = frame.f_code
            show = shown.get(code)
            if show is None:
                show = shown[code] = _is_shown(code.co_filename)
            if show:
                key.append((code, frame.f_lasti))
            frame = frame.f_back
        found = (base, *key)
        number = self._ids.get(found)
        if number is None:
            number = self._ids[found] = len(self._ids)
            below = self._frames[base] if base >= 0 else ()
            frames = (*(_text(code, lasti) for code, lasti in key), *below)[:MAX_FRAMES]
            self._frames.append(frames)
            self.new.append(StackRecord(number, frames))
        return number


def _is_shown(file: str) -> bool:
    if file.startswith((_OURS, _TORCH, "<frozen")):
        return False
    return not file.startswith(_STDLIB) or any(part in file for part in _SITE)


def _text(code: CodeType, lasti: int) -> str:
    line = next((line for start, end, line in code.co_lines() if start <= lasti < end and line), code.co_firstlineno)
    return f"{code.co_filename}:{line} {code.co_qualname}"
