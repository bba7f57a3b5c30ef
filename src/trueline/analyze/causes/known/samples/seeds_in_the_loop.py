"""Random numbers begin again within the training loop: the same noise, masks and augmentation come again.

A seed, or a generator that is made and seeded, inside of the loop; an evaluation that seeds and does not put the state
back.

What looks like it
------------------
Ranks that share one seed (`random-streams-equal`): then numbers are the same on all ranks, and others at each step.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "rng-streams": "often",
        "rng-streams/begins-again": "always",
        "input-constant": "often",
        "input-constant/noise": "always",
    },
    needs=("rng-streams/begins-again", "input-constant/noise"),
    settles="Print the first numbers that are drawn at two steps in a row, or after two evaluations: equal ones settle "
    "it. Seed once, before the loop; put evaluations under torch.random.fork_rng().",
)
