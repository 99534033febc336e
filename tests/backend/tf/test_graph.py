"""The shortest way to call a traced function, and the public one that stands in for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")


from fastnet.backend.tf import graph
from fastnet.backend.tf.graph import caller

pytestmark = pytest.mark.tf

Explained = list[tuple[str, Any]]


def traced(fn: Callable[..., Any], *specs: Any) -> Any:
    return tf.function(fn, autograph=False).get_concrete_function(*specs)


SPEC = tf.TensorSpec((None,), tf.float32)


@pytest.fixture(params=["shortest", "public"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return `caller`, as it is and as it is where TensorFlow lacks what it goes by."""

    def make_caller(concrete: Any, explained: Explained | None = None) -> Any:
        def explain(error: BaseException, graph: Any) -> None:
            if explained is not None:
                explained.append((type(error).__name__, graph))

        with monkeypatch.context() as patch:
            if request.param == "public":
                patch.setattr(graph, "direct_call", lambda concrete: None)
            call = caller(concrete, explain)
        assert call.__name__ == ("call" if request.param == "shortest" else "call_publicly")
        return call

    return make_caller


def test_results(make: Any) -> None:
    variable = tf.Variable(3.0)
    concrete = traced(lambda x, y: [x * variable, x - y], SPEC, SPEC)
    call = make(concrete)
    x, y = tf.constant([1.0, 2.0]), tf.constant([0.5, 0.5])
    assert [result.numpy().tolist() for result in call([x, y])] == [[3.0, 6.0], [0.5, 1.5]]
    # what a graph captures is read in each call
    variable.assign(10.0)
    assert call([x, y])[0].numpy().tolist() == [10.0, 20.0]


def test_errors_are_explained(make: Any) -> None:
    def check(x: Any) -> list[Any]:
        with tf.control_dependencies([tf.debugging.assert_positive(x)]):
            return [tf.identity(x)]

    explained: Explained = []
    concrete = traced(check, SPEC)
    call = make(concrete, explained)
    with pytest.raises(tf.errors.InvalidArgumentError):
        call([tf.constant([-1.0])])
    assert explained == [("InvalidArgumentError", concrete.graph)]
    assert call([tf.constant([1.0])])[0].numpy().tolist() == [1.0]
