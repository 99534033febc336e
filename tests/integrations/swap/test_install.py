"""Swapping in and out: what changes, what does not, and that all of it is put back."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip(
    "fastestimator", reason="swaps fastnet into FastEstimator 1.7.0: `make test-fe`"
)

pytestmark = pytest.mark.tf


from fastnet.integrations.fastestimator import UnknownVersionError, install, uninstall
from fastnet.integrations.fastestimator.networks import get_compile
from fastnet.integrations.fastestimator.patched_names import NETWORK, OPS
from tests.subprocesses import run_python


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    yield
    uninstall()


@pytest.fixture(scope="module", autouse=True)
def everything(fastestimator: ModuleType) -> ModuleType:
    """All of FastEstimator that can be imported here, so that swapping imports nothing more."""
    for module in [*NETWORK, *OPS, "estimator", "trace.io.traceability", "xai.saliency"]:
        with contextlib.suppress(ModuleNotFoundError):  # of what is not installed here
            importlib.import_module(f"fastestimator.{module}")
    return fastestimator


def attributes() -> dict[str, dict[str, Any]]:
    """Take down every attribute of every module of FastEstimator."""
    return {
        name: dict(vars(module))
        for name, module in sorted(sys.modules.items())
        if name == "fastestimator" or name.startswith("fastestimator.")
    }


def differences(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> set[str]:
    missing = object()
    return {
        f"{module}.{name}"
        for module in before.keys() | after.keys()
        for name in before.get(module, {}).keys() | after.get(module, {}).keys()
        if before.get(module, {}).get(name, missing) is not after.get(module, {}).get(name, missing)
    }


@pytest.mark.parametrize("ops", [True, False])
def test_changes_are_listed_and_restored(ops: bool) -> None:
    before = attributes()
    swap = install(ops=ops)
    assert not swap.pending
    assert differences(before, attributes()) == set(swap.changes)
    restored = uninstall()
    assert set(restored) == set(swap.changes or restored)
    assert differences(before, attributes()) == set()


def test_every_name_in_tables_is_replaced(fastestimator: ModuleType) -> None:
    tables = {True: {**NETWORK, **OPS}, False: NETWORK}
    for ops, table in tables.items():
        originals = {
            f"fastestimator.{module}.{name}": getattr(sys.modules[f"fastestimator.{module}"], name)
            for module, names in table.items()
            for name in names
            if f"fastestimator.{module}" in sys.modules
        }
        untouched = fastestimator.op.tensorop.loss.CrossEntropy
        with install(ops=ops) as swap:
            assert originals.keys() <= set(swap.changes)
            # No module has an original under another name.
            left = {id(one) for one in originals.values()}
            for module, names in attributes().items():
                found = [name for name, value in names.items() if id(value) in left]
                assert not found, (module, found)
            assert (fastestimator.op.tensorop.loss.CrossEntropy is untouched) is not ops


def test_block_restores_previous_state() -> None:
    before = attributes()
    with install(ops=False):
        network_only = attributes()
        with install():
            assert differences(network_only, attributes())
        assert differences(network_only, attributes()) == set()
        with pytest.raises(ZeroDivisionError), install():
            raise ZeroDivisionError
        assert differences(network_only, attributes()) == set()
    assert differences(before, attributes()) == set()


def test_install_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before, finders = attributes(), list(sys.meta_path)
    with monkeypatch.context() as patch:
        patch.setitem(OPS, "op.op", ("Op", "NoSuchOp"))
        with pytest.raises(AttributeError, match="NoSuchOp"):
            install(compile=True)
        with install(ops=False):
            network_only = attributes()
            with pytest.raises(AttributeError, match="NoSuchOp"):
                install(compile=True)
            assert differences(network_only, attributes()) == set()
    assert differences(before, attributes()) == set()
    assert sys.meta_path == finders
    assert get_compile() is False
    with install() as swap:
        assert "fastestimator.network.build" in swap.changes
    assert differences(before, attributes()) == set()


def with_noise(x: Any) -> Any:
    import tensorflow as tf

    return x + tf.random.uniform((2,))


@pytest.mark.parametrize("eager", [False, True])
def test_random_numbers_after_set_seed_repeat(fastestimator: ModuleType, eager: bool) -> None:
    """Without it, random numbers continue from epoch to epoch, unlike FastEstimator's."""
    import tensorflow as tf

    def draw(network: Any, epoch: int) -> list[list[float]]:
        with network("train", epoch, eager=eager):
            return [network.run_step({"x": tf.zeros(2)})["y"].numpy().tolist() for _ in range(2)]

    with install():
        op = fastestimator.op.tensorop.LambdaOp(with_noise, "x", "y")
        network = fastestimator.network.TFNetwork([op])
        tf.random.set_seed(3)
        first = draw(network, 1)
        assert draw(network, 2) != first
        for epoch in (3, 4):
            tf.random.set_seed(3)
            assert draw(network, epoch) == first


def mean_square(y: Any) -> Any:
    return (y**2).mean()


def test_compiled_steps_train_to_same_weights(fastestimator: ModuleType) -> None:
    """Networks compile their steps, and train to the same weights up to rounding."""
    torch = pytest.importorskip("torch")
    from fastnet import CompileOptions

    def train() -> tuple[Any, str]:
        torch.manual_seed(0)
        model = fastestimator.build(partial(torch.nn.Linear, 3, 1), "sgd")
        ops = fastestimator.op.tensorop
        network = fastestimator.Network(
            [
                ops.model.ModelOp(model, "x", "y"),
                ops.LambdaOp(fn=mean_square, inputs="y", outputs="loss"),
                ops.model.UpdateOp(model, "loss"),
            ]
        )
        with network("train", 1, ""):
            for step in range(4):
                network.run_step({"x": torch.full((2, 3), float(step))})
        return model.weight.detach(), network.explain("train").compiled

    with install():
        expected, compiled = train()
        assert compiled == ""
    with install(compile=CompileOptions(backend="eager")):
        found, compiled = train()
        assert compiled.startswith("are compiled")
    torch.testing.assert_close(found, expected)


def test_names_in_modules_of_program_stay() -> None:
    """A module that is not FastEstimator's keeps what it has imported."""
    from fastestimator.network import Network as before

    module = ModuleType("program_of_a_user")
    module.Network = before  # type: ignore[attr-defined]
    sys.modules["program_of_a_user"] = module
    try:
        with install() as swap:
            assert module.Network is before  # type: ignore[attr-defined]
            assert not [name for name in swap.changes if not name.startswith("fastestimator.")]
            from fastestimator.network import Network as after

            assert after is not before
    finally:
        del sys.modules["program_of_a_user"]


def test_unknown_version_is_refused(
    fastestimator: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fastestimator, "__version__", "2.4.1")
    before = attributes()
    with pytest.raises(UnknownVersionError, match=r"1\.7\.0.*2\.4\.1"):
        install()
    assert differences(before, attributes()) == set()


def in_a_fresh_process(code: str) -> None:
    result = run_python("-c", code)
    assert result.returncode == 0, result.stderr[-3000:]


def test_install_before_import_replaces_names_after_it() -> None:
    """Nothing is imported before the program does; then all of it is swapped, and lazily."""
    in_a_fresh_process(
        "import sys\n"
        "from fastnet.integrations.fastestimator import install, uninstall\n"
        "swap = install()\n"
        "assert swap.pending\n"
        "assert not {'torch', 'tensorflow', 'fastestimator'} & set(sys.modules)\n"
        "assert swap.changes['fastestimator.network.Network'] == 'fastnet.network.Network'\n"
        "assert 'will be fastnet' in str(swap)\n"
        "finders = len(sys.meta_path)\n"
        "uninstall()\n"
        "assert len(sys.meta_path) == finders - 1\n"
        "sys.modules['torchvision'] = None\n"
        "swap = install()\n"
        "from fastestimator.op.tensorop.loss import CrossEntropy\n"
        "assert not swap.pending\n"
        "import fastnet, fastestimator as fe\n"
        "assert issubclass(CrossEntropy, fastnet.op.tensorop.loss.CrossEntropy)\n"
        "assert fe.Network.__module__ == 'fastnet.integrations.fastestimator.networks'\n"
        "assert 'fastestimator.estimator' not in sys.modules\n"
        "from fastestimator.estimator import Estimator, TFNetwork\n"
        "assert issubclass(TFNetwork, fastnet.TFNetwork)\n"
        "import inspect\n"
        "assert 'class BaseNetwork' in inspect.getsource(sys.modules['fastestimator.network'])\n"
        "assert not [one for one in sys.meta_path if 'fastnet' in type(one).__module__]\n"
        # Modules that cannot be imported are left out.
        "reason = 'normalize: not replaced, because of: No module named \\'torchv'\n"
        "assert reason in str(swap)\n"
        "assert 'fastestimator.op.tensorop.normalize.Normalize' not in swap.changes\n"
        "assert 'fastestimator.op.tensorop.permute.Permute' in swap.changes\n"
        "uninstall()\n"
        "for name, module in list(sys.modules.items()):\n"
        "    if name.startswith('fastestimator'):\n"
        "        for key, value in vars(module).items():\n"
        "            where = getattr(value, '__module__', None) or ''\n"
        "            assert not str(where).startswith('fastnet'), (name, key)\n"
        "            assert not (isinstance(value, type) and '_stands_for' in vars(value)), key\n"
    )


def test_missing_fastestimator_raises() -> None:
    in_a_fresh_process(
        "import importlib.metadata, importlib.util\n"
        "from fastnet.integrations.fastestimator import install\n"
        "def missing(name):\n"
        "    raise importlib.metadata.PackageNotFoundError(name)\n"
        "importlib.metadata.version = missing\n"
        "importlib.util.find_spec = lambda name: None\n"
        "try:\n"
        "    install()\n"
        "except ModuleNotFoundError as error:\n"
        "    text = str(error)\n"
        "assert 'pip install fastestimator==1.7.0' in text, text\n"
    )
