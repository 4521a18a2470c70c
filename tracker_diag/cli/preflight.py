"""`tracker-diag preflight`: checks before training, on the user's files and functions."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tracker_diag.cli.options import AsJson, refuse, refusing, show


def preflight(
    *,
    tokens: Annotated[
        Path | None,
        typer.Option(help="Token table of one real batch, as replay takes it; only its first step is read."),
    ] = None,
    samples: Annotated[
        Path | None, typer.Option(help="JSON Lines, one sample each: reward, group, success; return, value.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="The run's settings with those of its evaluation: YAML, JSON.")
    ] = None,
    memory: Annotated[Path | None, typer.Option(help="What a device must hold, YAML: device_gib, actor, ...")] = None,
    env: Annotated[
        str | None, typer.Option(help="module:function that makes an environment with reset and step.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="module:function, a weak expert: observation to action.")] = None,
    tool: Annotated[
        str | None, typer.Option(help="module:function without arguments; it is called many times at once.")
    ] = None,
    eos_id: Annotated[int | None, typer.Option(help="Id of the token that ends a response.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds for each part of a check.")] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Find mistakes in the wiring before training.

    It checks environment, rewards, masks, log-probs, settings, tools and memory.
    Exit code 0 if no check failed, 1 if one did, 2 for bad input.
    """
    from tracker_diag.preflight import files
    from tracker_diag.preflight.run import preflight as check

    if not any((tokens, samples, config, memory, env, tool)):
        refuse("nothing given, expected at least one of --tokens, --samples, --config, --memory, --env, --tool")
    with refusing():
        given: dict[str, Any] = {"eos_id": eos_id}
        given |= files.tokens(tokens) if tokens else {}
        given |= files.samples(samples) if samples else {}
        given |= {"config": files.settings(config)} if config else {}
        given |= {"memory": files.plan(memory)} if memory else {}
        named = {"env": env, "policy": policy, "tool": tool}
        given |= {name: files.function(f"--{name}", value) for name, value in named.items() if value}
        report = check(seconds=seconds, **given)
    show(report, lambda it: it, as_json=as_json)
    raise typer.Exit(report.exit_code)
