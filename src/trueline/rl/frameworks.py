"""What following the rollouts of any framework takes: methods of one of its classes are wrapped as that is imported,
and return what they returned.

B sequences, L response tokens.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar
from weakref import WeakSet

import torch
from torch import Tensor

from trueline.capture import child_env
from trueline.capture.model.patches import Patch, calling
from trueline.rl.imported import after_import
from trueline.schema.safe_logger import SafeLogger
from trueline.schema.text.reading import why

_log = SafeLogger()

MODULES: Mapping[str, tuple[str, ...]] = {
    "trl": ("trl.trainer.grpo_trainer", "trl.trainer.rloo_trainer"),
    "verl": ("verl.trainer.ppo.ray_trainer", "verl.trainer.ppo.v1.trainer_base"),
    "slime": ("slime.observability.train_data_utils",),
    "openrlhf": ("openrlhf.trainer.ppo_trainer",),
    "nemo_rl": ("nemo_rl.utils.logger",),
    "areal": ("areal.trainer.ppo.actor",),
}
"""By framework, whose followers are in the module of that name here, the modules of its that are waited for."""

TOKENS = 2**15
"""Most response tokens that are recorded of one generation of the job, at their greatest length, but one group at
least: some 600 KB.
"""

Record = Callable[..., bool]

_followed: WeakSet[Any] = WeakSet()
unseen = torch._C.DisableTorchFunction
"""Context in which our own calls of torch are no part of the step."""


def follow(record: Record, names: Sequence[str] = ()) -> None:
    """Record the rollouts of the frameworks ``names``, of all where there is none, with ``record``
    (``trueline.rl.record``): those that are imported, or will be.
    """
    for framework in names or MODULES:
        for module in MODULES[framework]:
            after_import(module, functools.partial(_follow, framework, record))


def _follow(framework: str, record: Record, module: Any) -> None:
    followers: Mapping[str, type[Follower]] = importlib.import_module(f"trueline.rl.{framework}").FOLLOWERS
    follower = followers[module.__name__]
    owner = getattr(module, follower.owner, None) if follower.owner else module
    if owner is None:
        follower.fails_for(f"{module.__name__} has no {follower.owner}")
    elif owner not in _followed:
        _followed.add(owner)
        follower(owner, record).install()


class Follower:
    """Wraps what ``calls`` names of ``owner``, a class or a module of a ``framework``. What fails is said once."""

    framework: ClassVar[str]
    owner: ClassVar[str] = ""

    def __init__(self, owner: Any, record: Record) -> None:
        self._owner, self._record = owner, record
        self._failed = False
        self._warned = set[str]()
        self._turn = 0

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        """By name of a method, what is called in its place, with the original before its arguments."""
        raise NotImplementedError

    def install(self) -> None:
        """Wrap them, where they are those that are known."""
        wrapped = self.calls()
        missing = [name for name in wrapped if not hasattr(self._owner, name)]
        if missing:
            self._fails(f"{self._owner.__name__} of this {self.framework} has no {missing[0]}")
            return
        for name, call in wrapped.items():
            Patch(self._owner, name, calling(call)).install()

    def try_to(self, function: Callable[..., Any], *args: Any) -> Any:
        """What ``function`` returns, and None where it fails, which is said: then nothing is tried any more."""
        if self._failed:
            return None
        try:
            with unseen():
                return function(*args)
        except Exception as error:
            self._fails(f"{type(error).__name__}: {why(error)}")
            return None

    def says(self, sentence: str) -> None:
        """Say of the job why less is recorded than could be, once."""
        if sentence not in self._warned:
            self._warned.add(sentence)
            _log.warning("trueline: rollouts of %s: %s", self.framework, sentence)

    def pick(self, groups_B: Sequence[Hashable], length: int) -> list[int]:
        """The sequences of a batch that are recorded, others each time: see ``pick``."""
        self._turn += 1
        return pick(groups_B, length, self._turn)

    @classmethod
    def fails_for(cls, says: str) -> None:
        """Say why nothing is recorded."""
        _log.warning(
            "trueline: the rollouts of %s are not recorded: %s. Training goes on.", cls.framework, says.rstrip(".")
        )

    def _fails(self, says: str) -> None:
        self._failed = True
        self.fails_for(says)

    def record(self, step: int, columns: Mapping[str, Any], sampling: Mapping[str, Any]) -> bool:
        """Record a batch; whether that was done."""
        # what this version of the framework has not is no column
        present = {name: value for name, value in columns.items() if value is not None}
        return self._record(step, **present, sampling=sampling, **self._destination())

    def _destination(self) -> dict[str, str]:
        """Where to, if not where the model's Run goes."""
        return {}


class DriverFollower(Follower):
    """Of a process that trains no model itself: what it records is a Run beside that of the job, at once, as Ray ends
    its processes without their last words.
    """

    def record(self, step: int, columns: Mapping[str, Any], sampling: Mapping[str, Any]) -> bool:
        is_recorded = super().record(step, columns, sampling)
        if is_recorded:
            child_env.tell_watched()
        return is_recorded

    def _destination(self) -> dict[str, str]:
        run_path = os.environ.get(child_env.RUN, "")
        return {"out": child_env.path_of_rollouts(run_path)} if run_path else {}


def pick(groups_B: Sequence[Hashable], length: int, turn: int) -> list[int]:
    """The sequences of a batch that are recorded, whole groups, of which others each ``turn``: as many as have
    ``TOKENS`` tokens at ``length`` each, but one group.
    """
    groups = list(dict.fromkeys(groups_B))
    size = -(-len(groups_B) // max(len(groups), 1))
    stride = -(-len(groups) // max(1, TOKENS // max(1, size * length)))
    # others each time, so that all come in turn
    picked = {group for index, group in enumerate(groups) if (index + turn) % max(stride, 1) == 0}
    return [index for index, group in enumerate(groups_B) if group in picked]


def numbered(groups: Sequence[Hashable]) -> list[int]:
    """Groups as whole numbers, in the order in which they come."""
    index = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return [index[group] for group in groups]


def scalar_of(values: Sequence[Tensor], masks: Sequence[Tensor]) -> list[float]:
    """The value of each sequence that all its sampled tokens have, as a group's advantage; NaN where they differ, or
    there is none.
    """
    scalars: list[float] = []
    for value, mask in zip(values, masks, strict=True):
        sampled = value[mask.bool()]
        alike = len(sampled) > 0 and bool((sampled == sampled[0]).all())
        scalars.append(float(sampled[0]) if alike else float("nan"))
    return scalars


def as_array(value: Any) -> Any:
    """A tensor of any dtype and device in host memory; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    value = value.detach()
    return (value.float() if value.is_floating_point() else value).cpu().numpy()
