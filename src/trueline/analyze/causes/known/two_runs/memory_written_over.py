"""A block of memory was written over: by another tensor's kernel, a freed buffer, or a copy that ends at a wrong place.

The elements that differ begin and end at multiples of a power of two, which differences by rounding or by data do not;
the numbers in their place may be those of another tensor, which is then named.

What looks like it
------------------
One weight or row that is another on purpose: a whole row is no block.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "corruption-pattern": "always",
        "first-divergence": "often",
        "trial-sync:memory": "often",
    },
    needs=("corruption-pattern",),
    settles="Run again with CUDA_LAUNCH_BLOCKING=1, and without the caching allocator "
    "(PYTORCH_NO_CUDA_MEMORY_CACHING=1): "
    "a write from another stream goes away.",
)
