"""Call stacks of the user's code, each stored once and referred to by a number."""

from __future__ import annotations

import os
import sysconfig
from types import CodeType, FrameType
from typing import Any

import torch

from trueline.capture.model.patches import UNSEEN
from trueline.capture.model.untraced import OWN_MODULES
from trueline.capture.record.callers import STANDS_IN
from trueline.schema.columns.records import StackRecord

MAX_FRAMES = 32
"""Frames of a stack that are recorded, the innermost ones."""

_PACKAGE = os.path.abspath(__file__).removesuffix(os.path.join("trueline", "capture", "record", "stacks.py"))
_OWN_PATHS = tuple(os.path.join(_PACKAGE, *module.split(".")) for module in OWN_MODULES)
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_SITE = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)


class Stacks:
    """Numbers for call stacks. Frames of torch, of Python's own library and of the recorder are left out: what remains
    is the training script and the libraries between it and torch.
    """

    def __init__(self) -> None:
        self.new: list[StackRecord] = []
        """Stacks that were seen for the first time and are not written yet."""
        self._ids: dict[tuple[Any, ...], int] = {}
        self._frames: list[tuple[str, ...]] = []
        self._codes: dict[int, CodeType | None] = {}
        """Code objects by id, as hashing them is slow; None for those that are left out. All are kept alive, so that no
        id is used twice.
        """
        self._left_out: list[CodeType] = []

    def take(self, frame: FrameType | None, base_stack: tuple[FrameType, int] | None = None) -> int:
        """The number of the stack that ends in ``frame``; ``base_stack`` is a frame below it and the number of its
        stack, which saves the way down from there.
        """
        codes, key, base = self._codes, [], -1
        while frame is not None:
            if base_stack is not None and frame is base_stack[0]:
                base = base_stack[1]
                break
            code = frame.f_code
            number = id(code)
            if number not in codes:
                self._meet(code)
            if codes[number] is not None:
                key.append(number)
                key.append(frame.f_lasti)
            frame = frame.f_back
        stack_key = (base, *key)
        stack = self._ids.get(stack_key)
        if stack is None:
            stack = self._ids[stack_key] = len(self._ids)
            below = self._frames[base] if base >= 0 else ()
            pairs = zip(key[::2], key[1::2], strict=True)
            frames = (*(_text(codes[code], lasti) for code, lasti in pairs), *below)[:MAX_FRAMES]
            self._frames.append(frames)
            self.new.append(StackRecord(stack, frames))
        return stack

    def _meet(self, code: CodeType) -> None:
        is_shown = _is_shown(code.co_filename) and code.co_qualname != STANDS_IN
        self._codes[id(code)] = code if is_shown else None
        if not is_shown:
            self._left_out.append(code)


def frame_of_update(frame: FrameType | None) -> FrameType | None:
    """The frame of the optimizer's step that ``frame`` runs in; None where it runs in none."""
    while frame is not None and frame.f_globals.get("__name__") != "torch.optim.optimizer":
        frame = frame.f_back
    return frame


def is_users_file(file: str) -> bool:
    """True if ``file`` is the user's own: of no installed package, not Python's, and not Trueline's."""
    installed = any(part in file for part in _SITE)
    return _is_shown(file) and not installed and not file.startswith((_PACKAGE, "<"))


def _is_shown(file: str) -> bool:
    if file.startswith((*_OWN_PATHS, _TORCH, "<frozen", UNSEEN)):
        return False
    return not file.startswith(_STDLIB) or any(part in file for part in _SITE)


def _text(code: CodeType, lasti: int) -> str:
    line = next((line for start, end, line in code.co_lines() if start <= lasti < end and line), code.co_firstlineno)
    return f"{code.co_filename}:{line} {code.co_qualname}"
