"""One copy from the device to the host a step, started when the step ends and read when it has arrived."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from torch import Tensor


class HostCopy:
    """Tensors on their way to host memory. On the CPU they are there at once; elsewhere the copy goes to pinned memory
    behind the device's own queue, and ``ready`` asks an event instead of waiting.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._event: torch.Event | None = None
        self.host: dict[str, Tensor] = {}
        self.add(tensors)

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """Start to copy further ``tensors``."""
        device = None
        for name, tensor in tensors.items():
            if tensor.device.type == "cpu":
                self.host[name] = tensor
                continue
            device = tensor.device
            # Only a copy to pinned memory returns before the device has made it.
            target = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
            self.host[name] = target.copy_(tensor, non_blocking=True)
        if device is not None:
            self._event = torch.Event(device=device.type)
            self._event.record()

    def ready(self) -> bool:
        """True if ``host`` may be read; never blocks."""
        return self._event is None or self._event.query()

    def arrives(self, *, within_s: float) -> bool:
        """True if ``host`` may be read within that time; a device may be stuck in what another rank never ends."""
        deadline = time.monotonic() + within_s
        while not self.ready():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    def wait(self) -> None:
        """Block until ``host`` may be read; only for closing."""
        if self._event is not None:
            self._event.synchronize()
