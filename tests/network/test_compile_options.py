"""Validation of `compile` and `CompileOptions`."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from typing import Any

import numpy as np
import pytest

from fastnet import CompileOptions
from fastnet.network.compile_options import read_compile


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (TypeError, "backend", 3),
        (TypeError, "max_programs", 1.5),
        (TypeError, "fallback_random", "no"),
        (ValueError, "max_programs", 0),
        (ValueError, "verify", 0),
        (TypeError, "verify", "last"),
        (TypeError, "verify", 1.5),
    ],
)
def test_bad_options(kind: type[Exception], name: str, value: Any) -> None:
    with pytest.raises(kind, match=f"{name}={value!r}"):
        CompileOptions(**{name: value})


@pytest.mark.parametrize("given", ["yes", 1, None])
def test_what_compile_accepts(given: Any) -> None:
    options = CompileOptions(backend="eager")
    assert read_compile(True) == CompileOptions()
    assert read_compile(False) is None
    assert read_compile(options) is options
    with pytest.raises(TypeError, match=f"CompileOptions, not {given!r}"):
        read_compile(given)


@pytest.mark.parametrize("given", [True, CompileOptions(backend="eager")])
def test_what_version_of_torch_compiles(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    network = pytest.importorskip("fastnet.network.torch").TorchNetwork
    for version in ("2.13.0+cpu", "2.14.1", "3.0.0"):
        monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion(version))
        network([], compile=given)
    for version in ("2.6.0", "2.12.1+cu130"):
        monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion(version))
        network([])
        with pytest.raises(RuntimeError, match=f"needs PyTorch 2.13 .*{re.escape(version)} is"):
            network([], compile=given)


def test_an_unknown_backend_of_torch() -> None:
    network = pytest.importorskip("fastnet.network.torch").TorchNetwork
    network([], compile=CompileOptions("aot_eager"))
    with pytest.raises(ValueError, match=r"backend='foo'.*'eager'.*'inductor'.*function"):
        network([], compile=CompileOptions("foo"))


def test_backend_of_torch_is_refused_in_tensorflow() -> None:
    tf_network = pytest.importorskip("fastnet.network.tf").TFNetwork
    tf_network([], compile=CompileOptions("xla"))
    with pytest.raises(ValueError, match=r"backend='inductor'.*\"xla\""):
        tf_network([], compile=CompileOptions("inductor"))


@pytest.mark.parametrize("dynamic", [True, False])
def test_dynamic_names_the_argument_of_the_network(dynamic: Any) -> None:
    with pytest.raises(TypeError, match=rf"Network\(\.\.\., dynamic={dynamic}, compile="):
        CompileOptions("eager", dynamic=dynamic)


def test_options_are_copied_and_pickled() -> None:
    options = CompileOptions("eager", max_programs=np.int64(3), verify=np.int32(2))
    assert type(options.max_programs) is type(options.verify) is int
    options = CompileOptions("eager", max_programs=3)
    assert pickle.loads(pickle.dumps(options)) == copy.deepcopy(options) == options
    assert dataclasses.replace(options, max_programs=2) == CompileOptions("eager", max_programs=2)
