"""The whole model that a module is a part of: a script may call ``model.encode_image``, or ``ddp.module.image``, and
never the model itself.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping

from torch import nn

from trueline.capture.model.layout import deepspeed_engine, fsdp2_groups, is_engine, is_fsdp2
from trueline.capture.model.live_objects import instances_of


def may_be_wrapped() -> bool:
    """True if FSDP1 or DeepSpeed may have wrapped a module of this process."""
    return "torch.distributed.fsdp.fully_sharded_data_parallel" in sys.modules or deepspeed_engine() is not None


def reduces_inside(module: nn.Module) -> bool:
    """True if ``module`` reduces the gradients of what it wraps: DDP, FSDP1, DeepSpeed."""
    is_fsdp1 = any(kind.__name__ == "FullyShardedDataParallel" for kind in type(module).__mro__)
    return isinstance(module, nn.parallel.DistributedDataParallel) or is_engine(module) or is_fsdp1


class Family:
    """The modules that hold ``part``, at any depth, among all that are alive: no module knows who holds it, so that
    takes a look through all objects.
    """

    def __init__(self, part: nn.Module) -> None:
        self._part = part
        self._holders = defaultdict[int, list[nn.Module]](list)
        for module in instances_of(nn.Module):
            # one that is still being made may have no table
            for child in vars(module).get("_modules", {}).values():
                self._holders[id(child)].append(module)
        self._above = list(self._climb())

    @property
    def is_gathered(self) -> bool:
        """True if FSDP2 has gathered weights of a module around the part for a call of one of its methods: what stands
        there now is not what the optimizer updates.
        """
        for module in filter(is_fsdp2, self._above):
            param_ids = {id(param) for param in module.parameters()}
            for group in fsdp2_groups(module):
                if any(id(fsdp_param.sharded_param) not in param_ids for fsdp_param in group.fsdp_params):
                    return True
        return False

    def whole(self, trainers: Callable[[nn.Module], Mapping[int, Hashable]]) -> nn.Module:
        """The module around the part that reduces gradients of what it wraps, the outermost of several; else the
        smallest one of those that hold most of what the optimizers of the part train, and nothing that others train.
        The part itself where there is none. ``trainers`` are, by the ids of a module's parameters, their optimizers.
        """
        reducing = max(filter(reduces_inside, self._above), key=_num_modules, default=None)
        if reducing is not None:
            return reducing
        best, own = self._part, trainers(self._part)
        most = len(own)
        for module in sorted(self._above, key=_num_modules):
            of_module = trainers(module)
            if len(of_module) > most and set(of_module.values()) == set(own.values()):
                best, most = module, len(of_module)
        return best

    def _climb(self) -> Iterator[nn.Module]:
        seen, to_climb = {id(self._part)}, [self._part]
        while to_climb:
            for holder in self._holders[id(to_climb.pop())]:
                if id(holder) not in seen:
                    seen.add(id(holder))
                    to_climb.append(holder)
                    yield holder


def _num_modules(module: nn.Module) -> int:
    return sum(1 for _ in module.modules())
