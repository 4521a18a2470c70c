"""Replay: logged tensors through the very same pipe as a live run, so that its findings are the same."""

from pathlib import Path

from tracker_diag.errors import BatchError, SourceError
from tracker_diag.monitor.monitor import Monitor
from tracker_diag.rules.loader import Own
from tracker_diag.rules.triage import Summary
from tracker_diag.trackers.files.prime_rl import read_exports
from tracker_diag.trackers.files.read import read_metrics
from tracker_diag.trackers.files.tokens import Texts, read_tokens


def replay(tokens: Path | str, metrics: Path | str | None = None, *, rules: Own = (), catalog: bool = True) -> Summary:
    """Diagnose the token table `tokens`, with the run's own `metrics` file where there is one.

    A folder is taken for the token exports of prime-rl. `rules` and `catalog` are as in `Monitor`.

    Raises:
        SourceError: what is wrong with which file.
    """
    table = Path(tokens)
    own = read_metrics(Path(metrics)) if metrics else {}
    waiting = iter(own)
    upcoming = next(waiting, None)
    texts = Texts()
    with Monitor(source=str(tokens), rules=rules, catalog=catalog, decode=texts.decode) as monitor:
        for step, tensors in read_exports(table) if table.is_dir() else read_tokens(table, texts):
            while upcoming is not None and upcoming < step:  # steps with metrics and no tensors
                monitor.log(own[upcoming], upcoming)
                upcoming = next(waiting, None)
            try:
                monitor.observe(**tensors)
            except BatchError as error:
                raise SourceError(f"{tokens}: step {step}: {error}") from error
            monitor.log(own.get(step, {}), step)
            if upcoming == step:
                upcoming = next(waiting, None)
        while upcoming is not None:
            monitor.log(own[upcoming], upcoming)
            upcoming = next(waiting, None)
        return monitor.close()
