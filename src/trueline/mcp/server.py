"""The MCP server: each tool is a method of `Answers`, or of `Trials`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trueline.mcp.answers import DATA, Answers
from trueline.mcp.reach import Reach
from trueline.mcp.trials import Trials
from trueline.render.bounded import document_text
from trueline.schema.errors import InputError, TruelineError

if TYPE_CHECKING:
    from mcp.server import MCPServer

INSTRUCTIONS = f"""Trueline says whether a PyTorch training is numerically right, since when, where, and what to do.
Begin with `runs`, then `verdict` of one. `status` is what it comes to: only `fine` and `same` mean that nothing was
found; `cannot-tell`, `undecided` and whatever `not_judged` names are open. `actions` have an `argv` that runs as it is
in a shell. Then `incident`, `evidence`, and of a recorded step `search_calls` and `call`. Two Runs: `diff`, then
`first_difference`.
Answers are pages: `left_out` counts what comes on later ones, `next_page` is the number to ask for. {DATA}"""
READS = ("runs", "verdict", "incident", "facts", "evidence", "compare", "first_difference", "call", "diff", "explain")


def require_sdk() -> None:
    """Raises ``InputError`` where the SDK of the protocol is not installed, or is another one."""
    try:
        from mcp.server import MCPServer  # noqa: F401
    except ImportError:
        raise InputError(
            "`trueline mcp` needs the MCP SDK, version 2 or newer, which is not installed: pip install 'mcp>=2'."
        ) from None


def server_of(roots: list[str], *, allowed_trials: int = 0, version: str = "") -> tuple[MCPServer[Any], Trials]:
    """A server for the Runs below ``roots``, which starts trials for ``allowed_trials`` runs of the job at most, and
    these trials, which end with it.
    """
    from mcp.server import MCPServer
    from mcp_types import ToolAnnotations

    answers = Answers(Reach(roots))
    trials = Trials(answers, budget=allowed_trials)
    server = MCPServer("trueline", instructions=INSTRUCTIONS, version=version, log_level="ERROR")
    reads = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
    starts = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=True)
    methods = [getattr(answers, name) for name in (*READS, "search_calls")]
    for method in (*methods, trials.trial_plan):
        server.add_tool(_tool(method), annotations=reads, structured_output=False)
    if allowed_trials:
        server.add_tool(_tool(trials.trial_start), annotations=starts, structured_output=False)
        server.add_tool(_tool(trials.trial_answer), annotations=reads, structured_output=False)
    return server, trials


def _tool(method: Callable[..., dict[str, Any]]) -> Callable[..., str]:
    """``method`` as a tool: its answer is one line of JSON, its refusal a sentence that the client reads."""
    from mcp.server.mcpserver.exceptions import ToolError

    @functools.wraps(method)
    def tool(**arguments: Any) -> str:
        try:
            return document_text(method(**arguments), compact=True)
        except TruelineError as error:
            raise ToolError(str(error)) from None
        except Exception as error:  # a Run may hold anything; the server goes on
            raise ToolError(f"It failed: {type(error).__name__}: {str(error)[:300]}") from None

    tool.__signature__ = inspect.signature(method, eval_str=True).replace(return_annotation=str)  # type: ignore[attr-defined]
    tool.__annotations__ = {
        name: parameter.annotation for name, parameter in tool.__signature__.parameters.items()  # type: ignore[attr-defined]
    } | {"return": str}  # fmt: skip
    return tool
