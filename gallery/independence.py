"""Which faults of the gallery are independent: another mistake, not the same one on another rank, in another wrapper,
at another time or of another size; and the families of mistakes that they are of.
"""

from __future__ import annotations

_FAMILIES: dict[str, tuple[str, ...]] = {
    "data that is not split": (
        "D1 D1.global-seed D1.order D1.second-epoch D1.sequential",
        "D1.one-replica",
        "D1.pairs",
        "D1.stream",
        "D1.unseen-all D1.unseen-pair",
        "D8",
        "I1",
        "I1.broadcast",
    ),
    "orders of samplers": (
        "D2 D2.four D2.large",
        "D2.no-sampler",
        "D2.stream",
        "D3 D3.rank-2",
        "D2.epoch D3.set-epoch",
        "I1.overlap",
        "I1.first",
        "I1.stuck",
    ),
    "data that is split twice": (
        "D4 D4.declared D4.four D4.in-order D4.list D4.own-dataset D4.short D4.tensors",
        "D4.batches",
        "D4.stream",
    ),
    "data of one rank": (
        "D5 D5.by-hand D5.fsdp D5.pair D5.pair-later",
        "D5.harder",
        "D5.map",
        "D5.noisy",
        "I1.raw",
        "I1.blank",
        "I1.beside",
        "I1.shifted I1.shifted-everywhere",
        "I1.ids",
        "D9",
        "D10 D10.row",
    ),
    "labels that do not count": ("D6", "D6.zeros D6.always D6.by-hand D6.fsdp"),
    "weights of tokens": (
        "D7 D7.pair D7.wild",
        "W1",
        "I1.short",
        "A1.rows",
        "A1.padding",
        "W5.padding",
    ),
    "masks of attention": ("N1 N1.modules", "N4.masked-row", "W3", "W3.off-by-one", "W4.padding"),
    "losses that are given something else": (
        "W5",
        "W5.sigmoid",
        "W5.log",
        "W5.divergence",
        "W5.rows",
        "W5.signs",
        "W5.target",
    ),
    "order that is lost": ("W6", "W6.not-added"),
    "inputs that carry nothing": ("I2", "I2.positions", "I2.labels"),
    "seeds in the loop": ("I3", "I3.noise I3.own", "I3.evaluation"),
    "samples that are mixed": ("W4", "W4.batch-first", "W4.softmax", "W7", "W7.equal", "W7.pooled"),
    "corrupted memory": ("N2 N2.all N2.modules", "N2.bit", "R4.bit-flip R4.last-bit"),
    "averages of weights": ("E1", "E1.swapped", "E1.part", "E1.bf16 E1.found"),
    "recomputation": ("A2", "A2.noise", "A2.counter", "A2.written"),
    "rollouts": (
        "L1.cache-drift",
        "L1.dropout",
        "L1.dummy-weights",
        "L1.lag",
        "L1.shifted",
        "L1.temperature-processed",
        "L1.temperature-raw",
        "L1.template",
        "L1.tensor-stale",
        "L1.tokenised-again",
        "L1.top-p-processed",
        "L1.top-p-raw",
    ),
    "modes": ("B2 B2.epochs", "B2.norm", "T1 T1.inside T1.reference"),
    "running statistics": ("B1", "B1.sync", "B1.poisoned"),
    "values that are not finite": (
        "N4 N4.by-hand N4.inf N4.recorded N4.recorded-by-hand",
        "N4.buffer",
        "N4.fsdp",
        "N4.gradient",
        "N4.loss",
        "N4.recorded-fsdp",
    ),
    "precision": ("N3", "S3.autocast", "S3.dtype", "S3.flags", "U4"),
    "unstable steps": ("N5",),
    "layers cut off": ("N6",),
    "wrappers that are bypassed": ("R1", "R1.later", "R7.backward-outside"),
    "reductions left out": (
        "R1.never R1.one-step",
        "R1.no-sync",
        "R1.one-parameter",
        "R7",
        "R7.epoch-end",
        "V1.not-copied",
        "V1.early",
    ),
    "parameters that are replaced": ("R2", "R2.added", "R2.assign", "R2.cast", "R2.ignored"),
    "corrupted collectives": (
        "R3 R3.by-hand R3.fsdp R3.watched-first",
        "R3.noise",
        "R3.own",
        "R3.stale",
        "R3.tail",
        "V1",
        "V1.from-first",
        "V1.elsewhere",
    ),
    "where ranks start": (
        "R4 R4.hybrid R4.init-sync",
        "R4.checkpoint",
        "R4.frozen",
        "Q1",
    ),
    "clipping": (
        "R5",
        "R5.local-norm",
        "R5.threshold",
        "S2",
        "S2.scaled",
        "U7",
        "U7.part",
        "A1.clipped",
        "G1",
        "G1.early",
        "G1.head",
        "G1.multiplied",
    ),
    "gradient scalers": (
        "R6",
        "R6.overflow",
        "S1.kept",
        "G1.unscaled-twice",
        "G1.never-unscaled",
        "A1.unscaled",
        "W2.left-out",
        "W2.collapsed",
    ),
    "numbers of updates": ("R6.extra", "R6.skipped"),
    "divisors": (
        "R8 R8.by-hand R8.four R8.fsdp R8.one-bucket",
        "R8.after-ddp",
        "R8.sum",
        "S4",
        "W2",
        "A1.short",
        "A1.sum",
        "V1.by-node",
        "V1.again",
    ),
    "buffers": ("R9 R9.by-hand",),
    "initial values": ("P1", "P2", "P2.twice", "P2.repeated", "P2.empty"),
    "process groups": ("R10 R10.by-hand R10.ddp-group", "R10.left-out", "R10.mesh", "R10.one-parameter"),
    "scale of losses": ("S1 S1.by-hand S1.fsdp S1.pair S1.pair-later S1.tenth", "S1.hooks", "W2.constant"),
    "gradients of one rank": (
        "V2",
        "V2.flipped",
        "V2.zeroed V2.zeroed-flat",
        "S5",
        "S5.noise S5.layer",
        "Q1.gradient-noise",
        "Q1.probe",
    ),
    "settings of optimizers on ranks": ("S3 S3.four S3.group", "S3.betas", "S3.optimizer", "S3.weight-decay"),
    "modes of modules": ("S3.mode",),
    "schedules": (
        "S3.schedule",
        "U8",
        "U8.order",
        "Q1.plateau",
        "H1",
        "H1.overwritten",
        "H1.seldom",
        "H1.never",
    ),
    "kernels of optimizers": (
        "U1",
        "U1.count",
        "U1.moment",
        "U2",
        "K1.cleared",
        "K1.older",
        "K1.count",
    ),
    "parameters of optimizers": (
        "U3",
        "U3.frozen",
        "K1",
        "K1.unfrozen",
        "K1.replaced",
        "K1.untied",
        "K1.twice",
        "K1.decay",
    ),
    "copies of weights": (
        "U5",
        "Q1.averaged",
        "Q1.noise",
    ),
    "gradients that are kept": (
        "U6 U6.one-rank",
        "A1",
        "A1.divided",
        "A1.left-over A1.epoch-end",
    ),
    "kernels and arguments of two runs": ("C1 C1.late C1.one-rank", "C2 C2.ranks", "C6", "C6.causal"),
    "weights, code and settings of two runs": ("C3 C3.small", "C4", "C5", "C7", "C7.code"),
}
"""By family, a line for each independent fault: its id, then those of its variants."""

_PLACES = {
    id: (line.split()[0], family) for family, lines in _FAMILIES.items() for line in lines for id in line.split()
}


def placed() -> frozenset[str]:
    """The ids whose independent fault and family are known."""
    return frozenset(_PLACES)


def independent_fault(id: str) -> str:
    """The id of the fault that the entry ``id`` is a variant of, which may be itself."""
    return _PLACES.get(id, (id, id))[0]


def family_of(id: str) -> str:
    """The family of mistakes that the entry ``id`` belongs to; itself where nobody said."""
    return _PLACES.get(id, (id, id))[1]
