"""The streams of random numbers that all code of a process draws from, as they are, to be put back."""

from __future__ import annotations

import copy
import random
import sys
from typing import Any

import torch


class RandomStreams:
    """The streams of torch on the host and on ``device``, of Python and of NumPy."""

    def __init__(self, device: torch.device) -> None:
        self._module = None if device.type == "cpu" else getattr(torch, device.type, None)
        self.device = device
        self._host = torch.get_rng_state()
        self._on_device = None if self._module is None else self._module.get_rng_state(device)
        self._python = random.getstate()
        self._numpy = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None

    def on(self, device: torch.device) -> RandomStreams:
        """The streams of another rank, for ``device`` of this one."""
        streams = copy.copy(self)
        streams.device = device
        streams._module = None if device.type == "cpu" else getattr(torch, device.type, None)
        return streams

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_module": None}

    def put_back(self) -> None:
        """Make them as they were."""
        torch.set_rng_state(self._host)
        if self._module is not None:
            self._module.set_rng_state(self._on_device, self.device)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
