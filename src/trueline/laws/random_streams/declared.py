"""Random streams of ranks and loader workers."""

from trueline.schema.column import Column
from trueline.schema.law import Code, Law

COLUMNS: tuple[Column, ...] = (
    Column(
        "rng_drawn",
        "list<uint64>",
        "",
        "On sampled steps, and where `torch.manual_seed` is called, digests of the states that the step drew random "
        "numbers from (0: of which it drew none, or unseen): of torch's CPU generator and the device's when the first "
        "forward pass began, and the same right after that call, unless another state was set since.",
        after="rng_used",
    ),
    Column(
        "own_draws",
        "string",
        "",
        "On some sampled steps, JSON of `OwnDraw`: operation, shape and line of each draw of random numbers from a "
        "generator of the program's own, a digest of its state before, whether it has the rows of the batch.",
    ),
)

LAW = Law(
    columns=COLUMNS,
    checks={
        "rng-streams": Code(),
        "loader-workers-alike": Code(),
    },
)
