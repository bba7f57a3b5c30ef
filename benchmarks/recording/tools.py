"""The two recorders and the bare step, behind one protocol, so that whoever takes the time cannot tell them apart."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from torch import nn, optim

OPS = ("min", "max", "mean", "norm", "nans", "zeros")
"""Statistics that msProbe's monitors compute."""

FAR = 10**6
"""A step that no run gets to."""


class Tool(Protocol):
    """Something that may record training steps into the folder it was made with."""

    def prepare(self) -> None:
        """Do what has to come before the model is built."""
        ...

    def attach(self, model: nn.Module, optimizer: optim.Optimizer) -> None:
        """Put hooks on the model."""
        ...

    def begin(self) -> None:
        """A step begins."""
        ...

    def end(self) -> None:
        """The step is over."""
        ...

    def close(self) -> None:
        """Write what is left."""
        ...

    def num_values(self) -> int:
        """Tensors that were recorded, in all steps whose files are still there."""
        ...


class Bare:
    """No recorder."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        pass

    def prepare(self) -> None:
        pass

    def attach(self, model: nn.Module, optimizer: optim.Optimizer) -> None:
        pass

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass

    def close(self) -> None:
        pass

    def num_values(self) -> int:
        return 0


class MsProbe(Bare):
    """``PrecisionDebugger`` of mindstudio-probe; ``settings`` are the keys of its config.json."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder / "msprobe"
        self._settings = settings

    def prepare(self) -> None:
        from msprobe.pytorch import PrecisionDebugger

        self.folder.mkdir()
        config = self.folder.parent / "config.json"
        config.write_text(json.dumps({"dump_path": str(self.folder), "rank": [], "step": [], **self._settings}))
        self._debugger = PrecisionDebugger(config_path=str(config))

    def attach(self, model: nn.Module, optimizer: optim.Optimizer) -> None:
        self._model = model

    def begin(self) -> None:
        self._debugger.start(model=self._model)

    def end(self) -> None:
        self._debugger.stop()
        self._debugger.step()

    def num_values(self) -> int:
        documents = (json.loads(path.read_text()) for path in self.folder.glob("step*/*/dump.json"))
        return sum(sum(1 for _ in _tensors(document["data"])) for document in documents)


class MonitorV1(Bare):
    """``TrainerMon`` of mindstudio-probe; ``settings`` are keys of its configuration beside the statistics."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder / "monitor"
        self._settings = settings

    def prepare(self) -> None:
        os.environ["MONITOR_OUTPUT_DIR"] = str(self.folder)

    def attach(self, model: nn.Module, optimizer: optim.Optimizer) -> None:
        from msprobe.pytorch import TrainerMon

        config = self.folder.parent / "monitor.json"
        config.write_text(json.dumps({"targets": {}, "format": "csv", "ops": list(OPS), **self._settings}))
        self._monitor = TrainerMon(str(config), params_have_main_grad=False)
        self._monitor.set_monitor(model=model, optimizer=optimizer, grad_acc_steps=1)

    def num_values(self) -> int:
        return sum(max(path.read_text().count("\n") - 1, 0) for path in self.folder.rglob("*.csv"))


class MonitorV2(MonitorV1):
    """``TrainerMonitorV2`` of mindstudio-probe; ``settings`` are its monitors, each with its own settings."""

    def attach(self, model: nn.Module, optimizer: optim.Optimizer) -> None:
        from msprobe.core.monitor_v2.trainer import TrainerMonitorV2

        config = self.folder.parent / "monitor.json"
        self.folder.mkdir()
        monitors = {name: {"enabled": True, "ops": list(OPS), **more} for name, more in self._settings.items()}
        config.write_text(json.dumps({"framework": "pytorch", "output_dir": str(self.folder), "monitors": monitors}))
        self._monitor = TrainerMonitorV2(str(config), fr="pytorch")
        self._monitor.start(model=model, optimizer=optimizer)

    def close(self) -> None:
        self._monitor.stop()


class Trueline(Bare):
    """``trueline.watch``; ``settings`` are the keys of its Plan."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder / "run"
        self._settings = settings

    def attach(self, model: nn.Module, optimizer: optim.Optimizer) -> None:
        import trueline

        self._watch = trueline.watch(model, optimizer, out=self.folder, plan=self._settings)

    def close(self) -> None:
        self._watch.close()

    def num_values(self) -> int:
        from pyarrow import parquet

        return sum(parquet.ParquetFile(path).metadata.num_rows for path in self.folder.glob("records/**/*.parquet"))


def _tensors(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        if node.get("type") == "torch.Tensor":
            yield node
        else:
            for child in node.values():
                yield from _tensors(child)
    elif isinstance(node, list):
        for child in node:
            yield from _tensors(child)
