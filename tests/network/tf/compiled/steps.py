"""What tests of compiled steps in TensorFlow share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import fastnet
from fastnet.network import TFNetwork
from tests.network.keras_models import Batch, keras, twins, weights


def pair(
    make: Callable[[], Any], optimizer: Any, ops_of: Callable[[Any], Any], **options: Any
) -> tuple[TFNetwork, TFNetwork, Any, Any]:
    """Return a compiled network and one that is not, of models of equal weights."""
    compiled, plain = twins(make)
    ours = fastnet.build(lambda: compiled, optimizer, model_name="ours")
    other = fastnet.build(lambda: plain, optimizer, model_name="other")
    options = {"compile": True, **options}
    return TFNetwork(ops_of(ours), **options), TFNetwork(ops_of(other)), ours, other


def assert_same_results(one: Batch, other: Batch, rtol: float = 1e-5) -> None:
    assert one.keys() == other.keys()
    for key in one:
        found, wanted = np.asarray(one[key], "float64"), np.asarray(other[key], "float64")
        # a sum rounds by the largest of what is added, and not by what is left
        atol = rtol / 10 * max(1.0, float(np.abs(wanted).max(initial=0.0)))
        np.testing.assert_allclose(found, wanted, rtol, atol, key)


def assert_same_weights(one: Any, other: Any, rtol: float = 1e-4) -> None:
    for own, wanted in zip(weights(one), weights(other), strict=True):
        np.testing.assert_allclose(own, wanted, rtol, rtol / 100)


def in_step(
    compiled: TFNetwork, plain: TFNetwork, data: Sequence[Batch], **context: Any
) -> list[Batch]:
    """Run both networks batch by batch, and compare their results."""
    context = {"mode": "train", "epoch": 1, **context}
    results = []
    with compiled(**context), plain(**context):
        for batch in data:
            results.append(compiled.run_step(batch))
            assert_same_results(results[-1], plain.run_step(batch))
    return results


def fallbacks(network: TFNetwork) -> list[str | None]:
    return [trace.fallback for trace in network.traces]


def is_compiled(network: TFNetwork) -> bool:
    """Return whether all that was traced was compiled."""
    return bool(network.traces) and all(
        trace.fallback is None and trace.compile_seconds > 0 for trace in network.traces
    )


@contextmanager
def warned() -> Iterator[list[str]]:
    """Collect the warnings of steps that are not compiled."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield texts
    texts += [str(one.message) for one in found if "one compiled program" in str(one.message)]


def momentum() -> Any:
    return keras.optimizers.SGD(0.05, momentum=0.9)
