"""`tracker-diag demo`: a small training with a fault, in MLflow and W&B."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tracker_diag.cli.options import refuse


def demo(
    arm: Annotated[
        str, typer.Option(help="What goes wrong: healthy, constrained, widen, drift-aware, collapse, stale-narrow.")
    ] = "widen",
    seed: Annotated[int, typer.Option(help="Seed of prompts, tool and sampling.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Training steps; things go wrong after step 80.")] = 300,
    out: Annotated[
        Path, typer.Option(help="Folder for MLflow's and W&B's files, tokens, findings and verdict.")
    ] = Path("demo-out"),
) -> None:
    """Train a small tool-using agent on the CPU."""
    console = Console(stderr=True)
    try:
        from tracker_diag.demo.grpo import ARMS
        from tracker_diag.demo.run import run_demo
    except ImportError as error:
        refuse(f'{error.name} is not installed: pip install "tracker-diag[demo]"')
    if arm not in ARMS:
        refuse(f"--arm: {arm!r} given, expected one of {', '.join(ARMS)}")
    if out.exists() and not out.is_dir():
        refuse(f"--out: {out} is a file, expected a folder")
    console.print(f"[bold]{arm}[/], seed {seed}: {ARMS[arm].says}")
    run_demo(arm, seed, steps, out, console)
