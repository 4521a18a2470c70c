"""`tracker-diag mcp`: answers to an agent that watches runs, by the Model Context Protocol over stdio."""

from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from tracker_diag.cli.options import SOURCE, refusing
from tracker_diag.errors import DiagError, require

INSTRUCTIONS = f"""\
tracker_diag diagnoses runs of reinforcement learning. Call `status` first: it says whether a run is ill, what broke
first, since which step, on what evidence, and what to do. Answers are JSON of at most 4 KB. Nothing here changes a run.

A run is: {SOURCE}
"""


def mcp(
    *,
    texts: Annotated[
        bool, typer.Option("--texts", help="Let worst_sequences show the text of sequences, not only where they are.")
    ] = False,
) -> None:
    """Answer an agent's questions about runs, by MCP.

    It speaks over stdio and changes no run.
    """
    with refusing():
        server = make_server(texts=texts)
    server.run("stdio")


def make_server(*, texts: bool = False) -> Any:
    """The MCP server with its tools."""
    from tracker_diag.cli import answers

    sdk, kinds = require("mcp.server.mcpserver", "mcp"), require("mcp_types", "mcp")
    refused: type[Exception] = require("mcp.server.mcpserver.exceptions", "mcp").ToolError
    server = sdk.MCPServer("tracker_diag", instructions=INSTRUCTIONS, log_level="WARNING")

    def worst_sequences(tokens: str) -> str:
        return answers.worst_answer(tokens, texts=texts)

    worst_sequences.__doc__ = answers.worst_answer.__doc__

    def refusable(answer: Callable[..., str]) -> Callable[..., str]:
        @wraps(answer)
        def call(*given: str, **named: str) -> str:
            try:
                return answer(*given, **named)
            except DiagError as error:
                raise refused(" ".join(str(error).split())) from error

        return call

    tools: dict[str, Callable[..., str]] = {
        "list_runs": answers.runs_answer,
        "status": answers.status_answer,
        "curve": answers.curve_answer,
        "compare": answers.compare_answer,
        "rule": answers.rule_answer,
        "worst_sequences": worst_sequences,
    }
    for name, answer in tools.items():
        about = (answer.__doc__ or "").partition("\n\n")[0]
        server.add_tool(
            refusable(answer),
            name=name,
            description=" ".join(about.split()),
            annotations=kinds.ToolAnnotations(read_only_hint=True, idempotent_hint=True),
            structured_output=False,
        )
    return server
