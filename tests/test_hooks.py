import inspect
from functools import partial
from types import SimpleNamespace

import pytest

from tracker_diag import Monitor
from tracker_diag.hooks import HookError, after, after_each, before


class Trainer:
    def loss(self, model, inputs):
        return model + inputs


def double(x, by=2):
    return x * by


def test_the_call_is_seen_and_comes_out_as_it_was():
    trainer, seen = Trainer(), []
    off = after(trainer, "loss", ("model", "inputs"), lambda result, given: seen.append((result, given)), Monitor())
    assert trainer.loss(1, inputs=2) == 3
    assert seen == [(3, {"model": 1, "inputs": 2})]
    off()
    assert trainer.loss(1, 2) == 3
    assert len(seen) == 1
    assert "loss" not in vars(trainer)


@pytest.mark.slow
def test_functions_of_modules_and_of_classes_too():
    module, seen = SimpleNamespace(double=double, __name__="module"), []
    off = after(module, "double", ("x",), lambda result, given: seen.append(dict(given)), Monitor())
    assert module.double(4) == 8
    off()
    assert module.double is double
    off = after(Trainer, "loss", ("inputs",), lambda result, given: seen.append(set(given)), Monitor())
    assert Trainer().loss(1, 2) == 3
    off()
    assert Trainer().loss(1, 2) == 3
    assert seen == [{"x": 4}, {"self", "model", "inputs"}]


@pytest.mark.parametrize("loss", [double, partial(double, by=3)])
def test_a_function_of_a_registry_is_seen_whether_it_has_a_name_or_not(loss):
    registry, seen, monitor = SimpleNamespace(get=lambda name: {"own": loss}[name], __name__="registry"), [], Monitor()
    after_each(registry, "get", ("x",), lambda result, given: seen.append((result, given["x"])), monitor)
    result = registry.get("own")(4)
    assert result == loss(4)
    assert (seen, monitor.failures) == ([(result, 4)], [])


class Passing(Trainer):
    def loss(self, *args, **kwargs):
        return super().loss(*args, **kwargs)


@pytest.mark.parametrize("of_class", [False, True])
def test_a_subclass_that_takes_whatever_comes_is_seen_by_the_names_of_what_it_stands_before(of_class):
    trainer, seen = Passing(), []
    owner = Passing if of_class else trainer
    off = after(owner, "loss", ("model", "inputs"), lambda result, given: seen.append(dict(given)), Monitor())
    assert trainer.loss(1, inputs=2) == 3
    off()
    assert {name: seen[0][name] for name in ("model", "inputs")} == {"model": 1, "inputs": 2}


def test_a_subclass_of_one_that_has_changed_is_reported_as_it_is():
    class Renamed(Passing):
        def loss(self, model, batch):
            return model + batch

    with pytest.raises(HookError, match="takes no inputs"):
        after(Renamed(), "loss", ("model", "inputs"), print, Monitor())
    with pytest.raises(HookError, match="takes no labels"):
        after(Passing(), "loss", ("labels",), print, Monitor())


def test_before_a_call_the_arguments_are_as_they_came():
    batch, seen = {"mask": 1}, []
    module = SimpleNamespace(reject=lambda batch: batch.update(mask=0) or batch, __name__="module")
    off = before(module, "reject", ("batch",), lambda given: seen.append(dict(given["batch"])), Monitor())
    assert module.reject(batch) is batch
    assert (seen, batch) == ([{"mask": 1}], {"mask": 0})
    off()
    module.reject(batch)
    assert len(seen) == 1


def test_what_a_hook_before_a_call_raises_is_counted_and_the_call_continues():
    trainer, monitor = Trainer(), Monitor()
    before(trainer, "loss", ("model",), lambda given: given["nothing"], monitor)
    assert trainer.loss(1, 2) == 3
    assert monitor.health["integration_errors"] == 1
    with pytest.raises(TypeError, match="missing 1 required"):
        trainer.loss(1)


def test_what_the_hook_raises_is_counted_and_goes_no_further():
    trainer, monitor = Trainer(), Monitor()
    after(trainer, "loss", ("model",), lambda result, given: given["nothing"], monitor)
    assert [trainer.loss(1, 2), trainer.loss(3, 4)] == [3, 7]
    assert monitor.health["integration_errors"] == 2
    assert len(monitor.failures) == 1


def test_what_the_function_raises_goes_through():
    trainer = Trainer()
    after(trainer, "loss", ("model",), lambda *seen: None, Monitor())
    with pytest.raises(TypeError, match="missing 1 required"):
        trainer.loss(1)


@pytest.mark.parametrize("hook", [after, before])
@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("lost", ("model",), r"Trainer\.lost: not there, expected a function that takes model"),
        ("loss", ("model", "batch"), r"Trainer\.loss\(model, inputs\): takes no batch"),
    ],
)
def test_a_function_that_has_changed_is_reported_at_set_up(hook, name, parameters, message):
    trainer = Trainer()
    with pytest.raises(HookError, match=message):
        hook(trainer, name, parameters, lambda *seen: None, Monitor())


def test_hooks_on_one_another_know_the_arguments_of_a_method_whose_signature_is_written_down():
    """As Ray writes one at the methods of an actor's class, with `self`."""

    class Actor:
        def save(self, step, logs=None):
            return step

    Actor.save.__signature__ = inspect.signature(Actor.save)
    actor, seen = Actor(), []
    health = Monitor()
    before(actor, "save", ("step",), seen.append, health)
    after(actor, "save", ("step",), lambda result, given: seen.append(given), health)
    assert actor.save(3, {"loss": 1.0}) == 3
    assert seen == [{"step": 3, "logs": {"loss": 1.0}}] * 2
