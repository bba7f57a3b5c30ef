"""U2. Fused SGD leaves parameters in bfloat16 as they are.

Who had it: pytorch#191763: in torch 2.13.0 ``SGD(fused=True)`` on the CPU does not move whole SIMD blocks of parameters
in bfloat16 or float16.
Planted: nothing; it is torch's own kernel.
Twin: the same in its plain form.
"""

from __future__ import annotations

from torch import nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import KERNELS_OF_OPTIMIZERS
from gallery.problems import CausalLM
from gallery.training import fit, sgd
from gallery.witness import trains_differently


def fused_sgd(ctx: EntryContext, faulty: bool) -> nn.Module:
    """SGD with momentum of a model in bfloat16."""
    problem = CausalLM()
    model = problem.model().bfloat16()
    return fit(ctx, problem, model, optimizer=sgd(model, fused=faulty))


_fault = variants(
    "U2",
    ("param-frozen",),
    trains_differently,
    ranks=(0,),
    world_size=1,
    family=KERNELS_OF_OPTIMIZERS,
    causes=("kernel-skips-elements",),
)

ENTRIES = (
    _fault("", "fused SGD in bfloat16 on the CPU, torch 2.13.0", fused_sgd, may_find=("optimizer-state-stale",)),
)
