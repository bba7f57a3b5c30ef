"""A dump of msProbe as a Run: ``step*/rank*/{dump,stack,construct}.json`` and ``dump_tensor_data/``.

Read as mindstudio-probe 26.2.0 writes it for PyTorch at the levels L0, L1 and mix, with the tasks statistics (with
checksums or without), tensor and structure. What it means by each name and number is in ``msprobe_names``,
``msprobe_calls`` and ``msprobe_values``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trueline.schema.columns.records import StackRecord
from trueline.schema.errors import InputError
from trueline.schema.files.run_manifest import Manifest
from trueline.schema.text.reading import reading, shortened
from trueline.store.importers.msprobe import values
from trueline.store.importers.msprobe.calls import Calls
from trueline.store.importers.msprobe.files import RankDump, find_dumps, read_dump, read_json, read_stacks, read_value
from trueline.store.importers.msprobe.names import DumpKey, parse
from trueline.store.importers.step_rows import Measure, Measured, StepRows, ValueOwner
from trueline.store.importers.target import new_run, require_free
from trueline.store.importers.torch_values import dtype_name, to_store
from trueline.store.writer import RunWriter

PRESETS = {"L0": "modules", "L1": "ops", "mix": "mix"}
FINGERPRINTS = {False: "msprobe-crc32", True: "msprobe-xor"}
WITHOUT_VALUES = "call"
"""The slot of a call of which no value is known: none that the recorder uses, as there is nothing to compare."""
ONLY_CALLED = "from msProbe's structure task, which has the calls and no values"

NOT_DUMPED = "from msProbe, which has the calls of modules inside the model and not that of the model"


@dataclass(frozen=True)
class DumpOptions:
    """``model`` and ``optimizer`` are names of classes, which no dump holds, see ``Calls``; ``measure`` measures stored
    values, which are left out of the Run where not ``tensors``.
    """

    measure: Measure
    model: str = "Model"
    optimizer: str = "optimizer"
    tensors: bool = True


def import_msprobe(source: str, target: str, options: DumpOptions, *, version: str = "") -> None:
    """Write the dump at ``source`` (the directory of a whole dump, of a step or of a rank) as a Run at ``target``.

    Raises ``InputError`` where there is no PyTorch dump, it is damaged, or ``target`` cannot be written, and then
    leaves nothing there.
    """
    require_free(target)
    with reading(f"'{shortened(source)}'", "Copy the dump again; nothing was imported."):
        _import(source, target, options, version)


def _import(source: str, target: str, options: DumpOptions, version: str) -> None:
    dumps = find_dumps(source)
    first = read_dump(dumps[0])
    prints = _Fingerprints()
    manifest = _manifest(source, dumps, first, version)
    with new_run(target, manifest) as run:
        for rank in sorted({dump.rank for dump in dumps}):
            with run.rank(rank) as writer:
                stacks: dict[tuple[str, ...], int] = {}
                for dump in (dump for dump in dumps if dump.rank == rank):
                    _StepImport(dump, writer, options, prints, stacks).write()
        run.manifest = manifest.model_copy(update={"fingerprint": prints.kind, "notes": prints.notes})


def _manifest(source: str, dumps: Sequence[RankDump], first: Mapping[str, Any], version: str) -> Manifest:
    task, level = str(first.get("task")), str(first.get("level"))
    depth = {"tensor": "tensor", "structure": "structure"}.get(task, "stats")
    return Manifest(
        trueline_version=version,
        world_size=max(dump.rank for dump in dumps) + 1,
        plan={"preset": PRESETS.get(level), "depth": depth},
        source={"format": "msprobe", "path": os.path.abspath(source), "task": task, "level": level},
    )


@dataclass
class _Fingerprints:
    """The kind of the fingerprints of the Run: one kind throughout, as two kinds cannot be compared."""

    kind: str = "trueline"
    notes: list[str] = field(default_factory=list)
    _has_kind: bool = False

    def meet(self, kind: str, dump: RankDump) -> None:
        """Take up the kind of a step; raises ``InputError`` for another one than before."""
        if self._has_kind and kind != self.kind:
            raise InputError(
                f"'{dump.path}' has checksums of another kind ({kind}) than the steps before it ({self.kind}). Import "
                "them as Runs of their own: pass one step or rank at a time."
            )
        self.kind, self._has_kind = kind, True

    def note(self, text: str) -> None:
        """Add a line to the manifest's notes, once."""
        if text not in self.notes:
            self.notes.append(text)


class _StepImport:
    """Imports one step of one rank."""

    def __init__(
        self,
        dump: RankDump,
        writer: RunWriter,
        options: DumpOptions,
        prints: _Fingerprints,
        stacks: dict[tuple[str, ...], int],
    ) -> None:
        self._dump = dump
        self._writer = writer
        self._options = options
        self._prints = prints
        self._stacks = stacks
        self._entries: Mapping[str, Any] = read_dump(dump)["data"]
        construct = read_json(dump.path, "construct.json")
        numbers, frames = self._read_stacks()
        self._calls = Calls(
            self._entries, construct, stacks=numbers, frames=frames, model=options.model, optimizer=options.optimizer
        )
        self._names: Sequence[str] = list(self._entries) or list(construct)
        self._rows = StepRows(dump.step)
        self._entered: set[str] = set()
        self._parameters: dict[str, dict[str, tuple[values.Leaf, str]]] = {}
        sums = [leaf for leaf in _leaves(self._entries) if leaf.get("md5")]
        self._checksums = bool(sums)
        if sums:
            prints.meet(values_kind(sums), dump)

    def write(self) -> None:
        """Write all rows in the order in which things happened."""
        unread = 0
        updated = False
        for micro in sorted(self._calls.model_ran):
            model = ValueOwner("fwd", self._options.model, kind="module", api=self._options.model, micro=micro)
            self._rows.add(model, WITHOUT_VALUES, Measured(note=NOT_DUMPED))
        for name in self._names:
            key, owner = parse(name), self._calls.owner(name)
            if key is not None and key.way == "parameters_grad":
                self._keep_gradients(key, self._entries.get(name, {}))
            elif key is None or owner is None:
                # entries of msProbe's own bookkeeping, which are no calls
                unread += name not in ("optimizer", "clip_grad", "megatron_micro_step_number")
            else:
                if owner.phase == "opt" and not updated:
                    updated = True
                    self._add_parameters()
                self._add_call(name, key, owner)
        # a dump of a step that never reached its update
        if not updated:
            self._add_parameters()
        if unread:
            self._prints.note(f"{unread} entries of '{self._dump.name}' are none of msProbe's for PyTorch; left out.")
        if len(self._rows):
            self._writer.write(self._rows.records())

    def _add_call(self, name: str, key: DumpKey, owner: ValueOwner) -> None:
        entry = self._entries.get(name)
        if entry is None:
            self._rows.add(owner, WITHOUT_VALUES, Measured(note=ONLY_CALLED))
        elif key.way == "backward":
            self._add_backward(owner, entry)
        elif owner.kind == "collective":
            self._add(owner, values.collective_values(entry))
        else:
            # the dump has a module behind all that ran inside it; its inputs come before them
            for parent in (*self._calls.parents(name), name):
                self._enter(parent)
            self._add(owner, values.forward_outputs(entry))
            self._keep_parameters(key, entry)

    def _add_backward(self, owner: ValueOwner, entry: Mapping[str, Any]) -> None:
        """The gradients of what a call returned, and its backward pass as a call of its own, whose name ends in
        ``_backward``: what that returns is no gradient of a tensor as the recorder takes it.
        """
        arrived = list(values.output_gradients(entry))
        rows = [self._add_value(owner, slot, leaf, None) for slot, leaf in arrived]
        handed_on = list(values.backward_outputs(entry))
        if not handed_on:
            return
        call = replace(owner, name=f"{owner.name}_backward", api=f"{owner.api}_backward")
        args: str | None = values.backward_arguments(len(arrived))
        for index, ((_, leaf), row) in enumerate(zip(arrived, rows, strict=True)):
            dtype, shape = str(leaf["dtype"]).removeprefix("torch."), leaf["shape"]
            self._rows.add(call, f"in{index}", Measured(), dtype=dtype, shape=shape, args=args, same_as=row)
            args = None
        for slot, leaf in handed_on:
            self._add_value(call, slot, leaf, args)
            args = None

    def _enter(self, name: str) -> None:
        """Add the inputs of a forward call; a module has its entry in the dump when it returns, after all inside it."""
        key, entry, owner = parse(name), self._entries.get(name), self._calls.owner(name)
        if name in self._entered or key is None or owner is None or entry is None:
            return
        self._entered.add(name)
        self._add(owner, values.forward_inputs(key, entry), args=values.arguments(key, entry))

    def _keep_parameters(self, key: DumpKey, entry: Mapping[str, Any]) -> None:
        for name, leaf in entry.get("parameters", {}).items():
            if values.is_leaf(leaf):
                self._parameters.setdefault(_member(key, name), {}).setdefault("param", (leaf, "value"))

    def _keep_gradients(self, key: DumpKey, entry: Mapping[str, Any]) -> None:
        for name, listed in entry.items():
            leaf = listed[0] if isinstance(listed, list) and listed else listed
            if values.is_leaf(leaf):
                self._parameters.setdefault(_member(key, name), {})["grad"] = (leaf, "grad")

    def _add_parameters(self) -> None:
        for name, by_phase in self._parameters.items():
            for phase, (leaf, slot) in by_phase.items():
                self._add(ValueOwner(phase, name, kind="param"), [(slot, leaf)])
        self._parameters = {}

    def _add(
        self, owner: ValueOwner, leaves: Iterator[tuple[str, values.Leaf]] | list[Any], args: str | None = None
    ) -> None:
        for slot, leaf in leaves:
            self._add_value(owner, slot, leaf, args)
            args = None

    def _add_value(self, owner: ValueOwner, slot: str, leaf: values.Leaf, args: str | None) -> int:
        dtype, shape, stored = str(leaf["dtype"]).removeprefix("torch."), leaf["shape"], None
        numbers = values.measured(leaf)
        if leaf.get("data_name"):
            x = read_value(self._dump, str(leaf["data_name"]))
            if x is None:
                numbers = _with_note(numbers, f"its file {leaf['data_name']} is not in the dump")
            else:
                numbers, dtype, shape = self._measure(x, numbers), dtype_name(x), tuple(x.shape)
                record = to_store(x, step=self._dump.step, key=self._rows.key(owner, slot))
                if record is not None and self._options.tensors:
                    self._writer.write(record)
                    stored = record.key
        return self._rows.add(owner, slot, numbers, dtype=dtype, shape=shape, args=args, tensor=stored)

    def _measure(self, x: Any, dumped: Measured) -> Measured:
        """Our own numbers of a value; its fingerprint only where msProbe took no checksums in the step."""
        measured = self._options.measure(x)
        # two kinds of fingerprints in one step could not be compared
        if self._checksums:
            return replace(measured, fingerprint=dumped.fingerprint)
        self._prints.meet("trueline", self._dump)
        return measured

    def _read_stacks(self) -> tuple[dict[str, int], dict[int, Sequence[str]]]:
        """The number of its stack by name of an entry, and the frames of each as msProbe has them."""
        numbers: dict[str, int] = {}
        lines: dict[int, Sequence[str]] = {}
        for names, frames in read_stacks(self._dump):
            number = self._stacks.setdefault(tuple(frames), len(self._stacks))
            if number not in lines:
                lines[number] = frames
                self._writer.write(StackRecord(number, values.stack_frames(frames)))
            numbers |= dict.fromkeys(names, number)
        return numbers, lines


def values_kind(leaves: Sequence[values.Leaf]) -> str:
    """The kind of the checksums of these tensors."""
    return FINGERPRINTS[values.is_xor(leaves[0])]


def _with_note(numbers: Measured, note: str) -> Measured:
    return replace(numbers, note="; ".join(filter(None, (numbers.note, note))))


def _leaves(node: Any) -> Iterator[values.Leaf]:
    if values.is_leaf(node):
        yield node
    elif isinstance(node, dict | list):
        for inner in node.values() if isinstance(node, dict) else node:
            yield from _leaves(inner)


def _member(key: DumpKey, name: str) -> str:
    """The name of a parameter of a module; of the model itself, its own."""
    return name if key.name == key.kind else f"{key.name}.{name}"
