"""The mark `by_day` leaves the named parameters in `make test`, and refuses a name that no parameter has."""

from types import SimpleNamespace

import pytest

from tests.order import pytest_collection_modifyitems


def items(*ids, named):
    def item(id):
        marks = {"by_day": pytest.mark.by_day(*named).mark}
        return SimpleNamespace(
            nodeid=f"test_a.py::test_b[{id}]", callspec=SimpleNamespace(id=id), get_closest_marker=marks.get,
            add_marker=lambda name: marks.setdefault(name, True),
        )  # fmt: skip

    return [item(id) for id in ids]


def test_parameters_that_are_not_named_are_nightly():
    collected = items("one", "two", "three", named=["two"])
    pytest_collection_modifyitems(SimpleNamespace(args=["tests"]), collected)
    nightly = {item.callspec.id for item in collected if item.get_closest_marker("nightly")}
    assert nightly == {"one", "three"}


def test_a_name_that_no_parameter_has_is_an_error_unless_one_test_is_asked_for():
    collected = items("one", named=["eno"])
    with pytest.raises(pytest.UsageError, match=r"expected ids of parameters, given .*eno"):
        pytest_collection_modifyitems(SimpleNamespace(args=["tests"]), collected)
    pytest_collection_modifyitems(SimpleNamespace(args=["test_a.py::test_b[one]"]), collected)
