import copy
import sys

import pytest

from tracker_diag import DiagError, MissingExtra, wrap
from tracker_diag.errors import require


@pytest.mark.parametrize("target", [None, 3, "wandb", object()])
def test_what_cannot_be_wrapped_is_told_with_what_can(target):
    with pytest.raises(DiagError) as error:
        wrap(target)
    assert str(error.value) == (
        f"target: builtins.{type(target).__qualname__} given, expected a wandb Run, the mlflow module, "
        "an mlflow ActiveRun, or an MlflowClient with run_id"
    )


def test_a_missing_library_names_the_extra_that_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra) as error:
        require("wandb", "wandb")
    assert str(error.value) == 'wandb is not installed: pip install "tracker-diag[wandb]"'
    assert isinstance(error.value, ImportError)


def test_a_wrapped_client_forwards_everything_else(mlflow_store):
    import mlflow

    client = mlflow.MlflowClient()
    run_id = client.create_run("0").info.run_id
    wrapped = wrap(client, run_id=run_id)
    wrapped.set_tag(run_id, "mine", "1")
    assert client.get_run(run_id).data.tags["mine"] == "1"
    assert repr(client) in repr(wrapped)
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = wrapped.no_such_thing
    assert copy.copy(wrapped).diag is wrapped.diag
    wrapped.diag.close()
