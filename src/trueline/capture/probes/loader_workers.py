"""What the workers of a DataLoader draw random numbers from, as far as it can be read without starting one.

torch seeds its own, Python's and NumPy's global streams in each worker. A generator that the data set holds is copied
into each worker as it is: all of them draw the same from it. Only attributes and names in code are read; nothing of the
user's is called.
"""

from __future__ import annotations

import dis
import random
from collections.abc import Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from trueline.capture.model.contents import attributes, elements

_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
_HOLDERS = ("dataset", "datasets", "transform", "transforms", "target_transform", "augment", "augmentation")
"""Attributes in which a data set keeps what it reads from or changes its samples by."""
_READING_METHODS = ("__getitem__", "__getitems__", "__call__", "forward")
_SEEDS = {"seed", "manual_seed", "seed_everything", "set_seed", "default_rng", "RandomState", "seed_all", "Generator"}
_VARIES = {"initial_seed", "get_worker_info", "urandom", "time", "time_ns", "SeedSequence", "getpid", "getrandbits"}
"""Names by which a seed is another one in each worker."""
_DRAWS = {
    *("random", "rand", "rand_like", "randn", "randn_like", "randint", "randrange", "randperm", "uniform", "normal"),
    *("choice", "choices", "shuffle", "sample", "permutation", "bernoulli", "multinomial", "beta", "gauss"),
    *("uniform_", "normal_", "bernoulli_", "random_", "exponential_"),
}
"""Names by which code draws random numbers."""
_MAX_HOLDERS, _MAX_CODE = 32, 64


def copied_generators(loader: DataLoader[Any]) -> list[str]:
    """Generators that a data set with loader workers holds and draws from as a sample is read, as ``Class.attribute``:
    each worker has a copy in one state. Those that a worker seeds, or might seed, are left out.
    """
    if not loader.num_workers or isinstance(loader.dataset, IterableDataset):
        return []
    names_of_init = _names(loader.worker_init_fn)
    # get_worker_info leads to the data set and its generators; initial_seed is for global streams mostly
    if names_of_init is None or names_of_init & _VARIES - {"initial_seed"}:
        return []
    copied: list[str] = []
    for holder in _holders(loader.dataset):
        fields = [name for name, value in attributes(holder).items() if issubclass(type(value), _GENERATORS)]
        names = _names_of_reading(type(holder)) if fields else set[str]()
        if names & (_SEEDS | _VARIES):
            continue
        copied += [f"{type(holder).__name__}.{name}" for name in fields if name in names and name not in names_of_init]
    return copied


def workers_draw(loader: DataLoader[Any]) -> bool:
    """True if workers end with the epoch, and what they read samples by draws from streams that torch seeds in them, by
    a number that the epoch begins with: from none of their own, seeding nothing.
    """
    if not loader.num_workers or loader.persistent_workers or isinstance(loader.dataset, IterableDataset):
        return False
    init = loader.worker_init_fn
    names_of_init = _names(init.func if isinstance(init, partial) else init)
    # initial_seed is made of that number
    if names_of_init is None or (names_of_init & _SEEDS and "initial_seed" not in names_of_init):
        return False
    names = set[str]().union(*(_names_of_reading(type(holder)) for holder in _holders(loader.dataset)))
    return bool(names & _DRAWS) and not names & (_SEEDS | _VARIES)


def seeds_workers_alike(loader: DataLoader[Any]) -> bool:
    """True if the loader's ``worker_init_fn`` seeds, and its code never uses the number of the worker that it is given,
    nor what else is another one in each worker.
    """
    function = loader.worker_init_fn
    if not loader.num_workers or not isinstance(function, FunctionType) or not function.__code__.co_argcount:
        return False
    names, code = _names(function), function.__code__
    if names is None or not names & _SEEDS or names & _VARIES:
        return False
    number = code.co_varnames[0]
    return not any(step.argval == number or number in _several(step.argval) for step in dis.get_instructions(code))


def _several(argval: Any) -> tuple[Any, ...]:
    return argval if isinstance(argval, tuple) else ()


def _holders(dataset: Any) -> Iterator[Any]:
    """The data set, and what it keeps to read from or to change samples by."""
    pending, visited = [dataset], set[int]()
    while pending and len(visited) < _MAX_HOLDERS:
        holder = pending.pop(0)
        if id(holder) in visited:
            continue
        visited.add(id(holder))
        yield holder
        fields = attributes(holder)
        for name in _HOLDERS:
            value = fields.get(name)
            if value is not None:
                pending += elements(value) if issubclass(type(value), (list, tuple)) else [value]


def _names_of_reading(kind: type) -> set[str]:
    """Names in the code that reads a sample, and in the methods of the class that it names."""
    names, pending, visited = set[str](), list(_READING_METHODS), set[str]()
    while pending and len(visited) < _MAX_CODE:
        method = pending.pop()
        if method in visited:
            continue
        visited.add(method)
        function = next((vars(base)[method] for base in kind.__mro__ if method in vars(base)), None)
        names_of_method = _names(function) if isinstance(function, FunctionType) else None
        if names_of_method:
            names |= names_of_method
            pending += names_of_method
    return names


def _names(function: Any) -> set[str] | None:
    """Names that the code of a function uses; none of None, and None of what has no code of Python."""
    if function is None:
        return set()
    function = function.__func__ if isinstance(function, MethodType) else function
    return set(_names_in(function.__code__)) if isinstance(function, FunctionType) else None


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
