"""Rows of tokens begin, or end, with one special token twice.

What it finds
-------------
A begin token that the template of a chat writes and the tokenizer adds once more; an end token that the collator
appends to texts that have one; a text of special tokens that is tokenized with `add_special_tokens=True`.

Why it matters
--------------
The model is trained on texts that begin as none did when it was trained first, and as none does when it generates. It
is a little worse than it should be, and nothing shows why.

How it decides
--------------
By counting, at the first 16 sampled steps and then now and then, over all ranks, in rows of four attended places or
more, 16 of them at least. Padding by `attention_mask`, on either side, is left out. It is said of an id

- with which 9 of 10 rows begin twice, and not three times; or with which half of the rows end, and 95 of 100 of those
  twice and not three times;
- and which stands alone, or in longer runs, at 1 of 20 of its places at most. So it is no word, and no padding that no
  mask tells of, whose runs are as long as rows are short.

Nothing is estimated. It is to be confirmed, as a format may have two such tokens.

What it may miss
----------------
Two different tokens that mean the same, special tokens doubled within rows only, models that are given embeddings.

Example
-------
Token 1 stands twice at the beginning of 1,280 of 1,280 rows, and nowhere alone.

Wrong and right
---------------
Wrong:

```python
text = tokenizer.apply_chat_template(chat, tokenize=False)
ids = tokenizer(text).input_ids
```

Right:

```python
ids = tokenizer(text, add_special_tokens=False).input_ids
```
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from trueline.judge.compared_ranks import sites_of
from trueline.schema.columns.edge_tokens import EdgeTokens
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted
from trueline.store.reader import Run

CODE = "token-doubled"
QUESTION = "mask"
NEEDS: tuple[str, ...] = ("edge_tokens",)
ACROSS_RANKS = False

FEWEST_ROWS = 16
"""Rows that tell how texts begin and end."""
BEGINNINGS = 0.9
"""Share of rows that begin with one id twice; others may be cut out of longer texts."""
ENDINGS = 0.5
"""Share of rows that end with one id; others were cut at the greatest length."""
OF_THESE = 0.95
"""Share of the rows that end with an id that must end with it twice, and of its places that must be in pairs."""


class _Edge(NamedTuple):
    """What most rows of a pass have at one side; as in ``EdgeTokens``."""

    rows: int
    token: int
    of_rows: int
    doubled: int
    reads: int
    pairs: int


def check(run: Run) -> list[Finding]:
    """A Finding for the beginning and one for the end at most; raises ``CannotTell`` where too few rows were seen."""
    lists = run.lists("edge_tokens")
    passes = [tokens for row in lists.values() for tokens in EdgeTokens.from_row(row.tolist()) if tokens.rows]
    num_rows = sum(tokens.rows for tokens in passes)
    if not passes:
        raise CannotTell("no pass over token ids was seen", reason="by-design")
    if num_rows < FEWEST_ROWS:
        raise CannotTell(f"fewer than {FEWEST_ROWS} rows of tokens were looked at", reason="too-few-steps")
    beginnings = _sum([_Edge(tokens.rows, *_of(tokens, "first")) for tokens in passes])
    endings = _sum([_Edge(tokens.rows, *_of(tokens, "last")) for tokens in passes])
    findings: list[Finding] = []
    if beginnings.doubled >= BEGINNINGS * num_rows and _comes_in_pairs(beginnings):
        findings.append(_finding(run, beginnings, num_rows, "beginning"))
    ends_so = endings.of_rows >= ENDINGS * num_rows and endings.doubled >= OF_THESE * endings.of_rows
    if ends_so and endings.doubled >= FEWEST_ROWS and _comes_in_pairs(endings):
        findings.append(_finding(run, endings, num_rows, "end"))
    return findings


def _of(tokens: EdgeTokens, side: str) -> tuple[int, int, int, int, int]:
    if side == "first":
        return tokens.first, tokens.first_rows, tokens.first_doubled, tokens.first_reads, tokens.first_pairs
    return tokens.last, tokens.last_rows, tokens.last_doubled, tokens.last_reads, tokens.last_pairs


def _sum(edges: Sequence[_Edge]) -> _Edge:
    """Of the id that is most often there."""
    rows = Counter[int]()
    for edge in edges:
        rows[edge.token] += edge.of_rows
    token = rows.most_common(1)[0][0]
    of_token = [edge for edge in edges if edge.token == token]
    return _Edge(
        sum(edge.rows for edge in of_token),
        token,
        sum(edge.of_rows for edge in of_token),
        sum(edge.doubled for edge in of_token),
        sum(edge.reads for edge in of_token),
        sum(edge.pairs for edge in of_token),
    )


def _comes_in_pairs(edge: _Edge) -> bool:
    """Runs of two have a pair for two places; a run of three has two pairs for three."""
    return OF_THESE * edge.reads <= 2 * edge.pairs <= edge.reads


def _finding(run: Run, edge: _Edge, num_rows: int, side: str) -> Finding:
    steps = sorted({step for step, _ in run.lists("edge_tokens")})
    ranks = tuple(sorted({rank for _, rank in run.lists("edge_tokens")}))
    bos = "add_special_tokens=False where the text has its special tokens already, as that of a chat template"
    eos = "Append the end token only to rows that do not end with it: the tokenizer, the template or the collator does"
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"Token {edge.token} stands twice at the {side} of {edge.doubled:,} of {counted(num_rows, 'row')}, and "
        "hardly anywhere alone.",
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], ranks[:2], phase="batch", names=("samples",), slot="in0"),
        measured=edge.doubled / num_rows,
        expected=0.0,
        unit=f"share of rows with the token twice at the {side}",
        false_alarm_rate=None,
        evidence={"kind": side, "token": edge.token, "rows": num_rows, "doubled": edge.doubled},
        next=(f"Print input_ids[0] of a batch. Pass {bos}." if side == "beginning" else f"{eos} so too.",),
    )
