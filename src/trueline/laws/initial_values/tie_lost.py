"""Two names were to be one parameter, and are two.

What it finds
-------------
A head that a model of transformers declares to be its embedding (`tie_word_embeddings`), and that has a weight of its
own: it was replaced, loaded or cast by itself after the model was made. Names that were one parameter when the training
began, of which one has become another later.

Why it matters
--------------
The head and the embedding are trained apart. A checkpoint of the two is loaded as one, and one of them is lost.

How it decides
--------------
Exactly, by the objects, and for you to confirm: of each pair that the model declares
(`all_tied_weights_keys` of transformers 5), whether both names have one parameter, or one memory, before the first
update; and of names that were one parameter then, whether a parameter came up later under a name that it had no name of
its own for.

What it may miss
----------------
Ties that nothing declares and that were lost before the first update, ties of earlier versions of transformers, and
parameters that a framework keeps in shards of its own.

Example
-------
lm_head.weight is declared to be transformer.wte.weight, and has values of its own before the first update.

Wrong and right
---------------
Wrong:

```python
model.lm_head = nn.Linear(hidden, vocab, bias=False)
```

Right:

```python
model.lm_head = nn.Linear(hidden, vocab, bias=False)
model.tie_weights()
```
"""

from __future__ import annotations

import json

from trueline.judge.compared_ranks import sites_of
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import named_some, ranks_text
from trueline.store.reader import Run

CODE = "tie-lost"
CALLS = {"": ("tie_weights", "resize_token_embeddings", "Linear")}
QUESTION = "start"
NEEDS: tuple[str, ...] = ()
ACROSS_RANKS = False


def check(run: Run) -> list[Finding]:
    """Findings on ties; raises ``CannotTell`` where the model has none."""
    texts = run.texts("declared_ties") if run.has("declared_ties") else {}
    tied = [names for env in run.env.values() if env.facts is not None for names in env.facts.tied]
    if not texts and not tied:
        raise CannotTell("the model declares no parameter to be another, and has none by two names", reason="by-design")
    lost = {rank: pairs for (_, rank), text in sorted(texts.items()) if (pairs := json.loads(text))}
    return [*([_declared_finding(run, lost)] if lost else []), *_later_findings(run)]


def _declared_finding(run: Run, lost: dict[int, list[list[str]]]) -> Finding:
    ranks = tuple(lost)
    pairs = lost[ranks[0]]
    words = named_some([f"{tied} is declared to be {source}" for tied, source in pairs])
    has = "has values of its own" if len(pairs) == 1 else "have values of their own"
    return _finding(
        "declared",
        f"{words}, and {has} before the first update ({ranks_text(ranks, all_ranks=run.ranks)}): the tie is lost.",
        [name for pair in pairs for name in pair],
        ranks,
        0,
    )


def _later_findings(run: Run) -> list[Finding]:
    """Of names that were one parameter, those that came up later as one of their own."""
    for rank, env in sorted(run.env.items()):
        groups = env.facts.tied if env.facts is not None else []
        first = set((env.lists[0] if env.lists else env).params) | set(env.frozen)
        for names in groups:
            later = [change for change in env.changes if change.name in names and change.name not in first]
            if later and later[0].trains is not None:
                rest = next((name for name in names if name != later[0].name), names[0])
                claim = (
                    f"{later[0].name} was one parameter with {rest}, and is one of its own since step {later[0].step} "
                    f"({ranks_text([rank], all_ranks=run.ranks)}): the tie is lost."
                )
                return [_finding("later", claim, [later[0].name, rest], (rank,), later[0].step)]
    return []


def _finding(kind: str, claim: str, names: list[str], ranks: tuple[int, ...], step: int) -> Finding:
    return Finding(
        code=CODE,
        severity="confirm",
        claim=claim,
        ranks=ranks,
        step_first=step,
        step_last=step,
        sites=sites_of(step, ranks[:1], phase="param", names=names),
        measured=2.0,
        expected=1.0,
        unit="parameters by two names that were one",
        false_alarm_rate=0.0,
        evidence={"kind": kind, "names": names[:100]},
        next=(
            "Tie them after the last change of the model and before the optimizer is made: model.tie_weights(), or "
            "head.weight = embedding.weight. If they are to be trained apart, say so: tie_word_embeddings=False.",
        ),
    )
