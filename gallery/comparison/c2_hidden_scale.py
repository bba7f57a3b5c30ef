"""C2. One layer's attention has its scale times 1.25, inside the kernel.

Who had it: attention kernels that apply the scale twice, or that of another head size, for some shapes only. The call
and its arguments are the same in both runs.
Planted: in the second layer, on one process, and on both of two ranks that are compared with one process.
Twin: bfloat16 compared with float32, and two healthy ranks compared with one process: rounding explains both.
"""

from __future__ import annotations

from torch import nn

from gallery.changed_kernel import ChangedKernel
from gallery.entry_context import EntryContext
from gallery.families import KERNELS_AND_ARGUMENTS_OF_TWO_RUNS
from gallery.reference_training import compared, ddp, language_model

SCALE = 1.25 / 16**0.5
"""The heads of the problem's model are 16 wide."""
SITE = "/fwd/blocks.1.scaled_dot_product_attention#0:out0"


def hidden() -> ChangedKernel:
    """The second layer's attention is wrong."""
    return ChangedKernel("flash_attention", scale=SCALE)


def one_process(ctx: EntryContext, faulty: bool) -> nn.Module:
    """One process, compared with one process."""
    if faulty:
        return language_model(ctx, inside=hidden)
    return language_model(ctx, change=lambda model: model.bfloat16())


def two_ranks(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Two ranks of DDP, compared with one process."""
    return language_model(ctx, parallel=ddp, inside=hidden) if faulty else language_model(ctx, parallel=ddp)


_fault = compared(
    "C2", ("first-divergence",), site=SITE, family=KERNELS_AND_ARGUMENTS_OF_TWO_RUNS, causes=("kernel-differs",)
)

ENTRIES = (
    _fault("", "attention scale x 1.25 hidden in one layer's kernel", one_process),
    _fault(
        "ranks", "attention scale x 1.25 hidden, two ranks beside one process", two_ranks, world_size=2, variant_of="C2"
    ),
)
