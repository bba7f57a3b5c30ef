"""The two recorders and the bare step, behind one protocol, so that whoever takes the time cannot tell them apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from torch import nn, optim

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
