"""msProbe's ``PrecisionDebugger`` over Trueline's recorder."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from typing import Any, ClassVar

import torch.distributed as dist
from torch import nn

from trueline.capture.model.world import is_initialised
from trueline.compat.msprobe.config import Settings, read_config, settings_of
from trueline.compat.msprobe.name_globs import plan_of
from trueline.compat.msprobe.recording import NoModel, Recording, module_kinds
from trueline.schema.errors import InputError
from trueline.schema.plan import Plan


class PrecisionDebugger:
    """Records what runs between ``start`` and ``stop``; ``step`` ends a step. ``dump_path`` becomes one Run.

    As in msProbe there is one per process: a second call returns the first and its arguments are not looked at, and
    ``start``, ``stop`` and ``step`` may be called on the class. Arguments take the place of fields of the config.
    Raises ``InputError`` for a field or value that is not supported. ``settings`` is what was understood.
    """

    _instance: ClassVar[PrecisionDebugger | None] = None

    def __new__(cls, *_: Any, **__: Any) -> PrecisionDebugger:
        """The one of this process."""
        return super().__new__(cls) if cls._instance is None else cls._instance

    def __init__(
        self,
        config_path: str | None = None,
        task: str | None = None,
        dump_path: str | None = None,
        level: str | None = None,
        step: list[int | str] | None = None,
    ) -> None:
        if PrecisionDebugger._instance is not None:
            return
        config = read_config(config_path)
        self.settings: Settings = settings_of(config, task=task, dump_path=dump_path, level=level, step=step)
        self._step = 0
        self._recording: Recording | None = None
        self._models: tuple[nn.Module, ...] = ()
        self._closed = False
        PrecisionDebugger._instance = self

    @classmethod
    def start(
        cls,
        model: nn.Module | Sequence[nn.Module] | None = None,
        token_range: object = None,
        rank_id: int | None = None,
    ) -> None:
        """Record from here on. ``model`` is needed at levels L0 and mix, and for entries of ``list`` that name
        modules; ``rank_id`` is the rank to be named where torch.distributed does not know it.

        Raises ``InputError`` for ``token_range``, for a name that matches no module, and where the Run exists already.
        """
        if token_range is not None:
            raise InputError("token_range is not supported. Leave it out, and choose steps by 'step' in the config.")
        self = cls._get()
        rank = _rank() if rank_id is None else rank_id
        if self._closed or not self.settings.wants(self._step):
            return
        if self.settings.ranks is not None and rank not in self.settings.ranks:
            return
        if self._recording is None:
            self._models = _models(model, self.settings.level)
            self._recording = self._record(rank)
            atexit.register(self.close)
        elif model is not None and _models(model, self.settings.level) != self._models:
            raise InputError(
                "start() was given another model than before, and one Run is about one model. Pass all of them as a "
                "list at every start()."
            )
        self._recording.start(self._step)

    @classmethod
    def stop(cls) -> None:
        """Record no further calls; a later ``start`` goes on with the same step."""
        recording = cls._get()._recording
        if recording is not None:
            recording.stop()

    @classmethod
    def step(cls) -> None:
        """The step is over; a later ``start`` belongs to the next one."""
        self = cls._get()
        if self._recording is not None:
            self._recording.end_step()
        self._step += 1
        if self.settings.steps is not None and self._step > max(self.settings.steps):
            self.close()

    @classmethod
    def set_init_step(cls, step: int) -> None:
        """Count steps from ``step`` on."""
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise InputError(f"The first step is {step!r}. Expected a whole number from 0.")
        cls._get()._step = step

    @classmethod
    def save(cls, variable: Any, name: str, save_backward: bool = True) -> None:
        """Not supported: raises ``InputError`` that says what is."""
        raise InputError("save() is not supported. Use watch.save(name, tensor) of trueline.watch.")

    @classmethod
    def register_custom_api(cls, module: Any, api: str, api_prefix: str | None = None) -> None:
        """Not supported: raises ``InputError`` that says what is."""
        raise InputError(
            f"register_custom_api() of '{api}' is not supported. Leave it out: every function of torch that it calls, "
            "and every operator registered with torch, is recorded."
        )

    restore_custom_api = register_custom_api

    def close(self) -> None:
        """Write what is pending and seal the Run; nothing is recorded after. Called at exit, too."""
        recording, self._recording = self._recording, None
        self._closed = True
        atexit.unregister(self.close)
        if recording is not None:
            recording.close()

    @classmethod
    def _get(cls) -> PrecisionDebugger:
        if PrecisionDebugger._instance is None:
            raise InputError("There is no PrecisionDebugger yet. Make one before start(), stop() or step() is called.")
        return PrecisionDebugger._instance

    def _record(self, rank: int) -> Recording:
        settings = self.settings
        model = self._models[0] if len(self._models) == 1 else nn.ModuleList(self._models)
        plan = Plan.load(plan_of(settings, module_kinds(model)))
        lead = 0 if settings.ranks is None else min(settings.ranks)
        return Recording(model, plan=plan, path=settings.dump_path, rank=rank, lead=lead)


def _models(model: object, level: str) -> tuple[nn.Module, ...]:
    """The models that ``start`` was given: several as a list; none where no module is recorded."""
    if model is None and level == "L1":
        return (NoModel(),)
    models = tuple(model) if isinstance(model, (list, tuple)) else (model,)
    if not models or not all(isinstance(module, nn.Module) for module in models):
        raise InputError(
            f"start() was given {model!r} as the model. At level {level} pass the torch.nn.Module, or a list of them."
        )
    return models  # type: ignore[return-value]


def _rank() -> int:
    return dist.get_rank() if is_initialised() else 0
