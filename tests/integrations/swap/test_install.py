"""Swapping in and out: what changes, what does not, and that all of it is put back."""

from __future__ import annotations

import ast
import contextlib
import dis
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any
from unittest.mock import patch

import pytest

pytest.importorskip(
    "fastestimator", reason="swaps fastnet into FastEstimator 1.7.0: `make test-fe`"
)

pytestmark = pytest.mark.tf

import torch

import fastnet
from fastnet.integrations.fastestimator import UnknownVersionError, install, uninstall
from fastnet.integrations.fastestimator.patches import HONOURED
from fastnet.integrations.fastestimator.table import NETWORK, OPS
from tests.integrations.swap.running import linear

Attributes = dict[str, dict[str, int]]


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
def test_says_what_it_changes_and_puts_it_back(ops: bool) -> None:
    before = attributes()
    swap = install(ops=ops)
    assert not swap.pending
    assert differences(before, attributes()) == set(swap.changes)
    restored = uninstall()
    assert set(restored) == set(swap.changes or restored)
    assert differences(before, attributes()) == set()


def test_every_name_of_the_table_is_swapped(fastestimator: ModuleType) -> None:
    originals = {
        f"fastestimator.{module}.{name}": getattr(sys.modules[f"fastestimator.{module}"], name)
        for module, names in {**NETWORK, **OPS}.items()
        for name in names
        if f"fastestimator.{module}" in sys.modules
    }
    with install() as swap:
        assert originals.keys() <= set(swap.changes)
        # under every other name, too
        left = {id(one) for one in originals.values()}
        for module, names in attributes().items():
            found = [name for name, value in names.items() if id(value) in left]
            assert not found, (module, found)


def test_where_the_names_lead(fastestimator: ModuleType) -> None:
    with install() as swap:
        network = sys.modules["fastestimator.network"]
        assert fastestimator.Network is network.Network
        assert fastestimator.build is network.build
        assert swap.changes["fastestimator.network.TorchNetwork"] == (
            "fastnet.network.torch.network.TorchNetwork"
        )
        assert (
            swap.changes["fastestimator.estimator.TFNetwork"]
            == "fastnet.network.tf.network.TFNetwork"
        )
        assert fastestimator.backend.reduce_mean is fastnet.backend.reduce_mean
        assert fastestimator.schedule.cosine_decay is fastnet.schedule.cosine_decay
        for name in ("BaseNetwork", "TFNetwork", "TorchNetwork"):
            assert issubclass(getattr(network, name), getattr(fastnet.network, name))
        loss = fastestimator.op.tensorop.loss.CrossEntropy
        assert issubclass(loss, fastnet.op.tensorop.loss.CrossEntropy)


def test_ops_can_be_left_alone(fastestimator: ModuleType) -> None:
    before = fastestimator.op.tensorop.loss.CrossEntropy, fastestimator.backend.reduce_mean
    with install(ops=False):
        assert fastestimator.op.tensorop.loss.CrossEntropy is before[0]
        assert fastestimator.backend.reduce_mean is before[1]
        assert issubclass(
            importlib.import_module("fastestimator.network").TorchNetwork,
            fastnet.network.TorchNetwork,
        )


def test_twice_is_once() -> None:
    before = attributes()
    first = install()
    swapped = attributes()
    second = install()
    assert differences(swapped, attributes()) == set()
    assert set(first.changes) == set(second.changes)
    assert len(uninstall()) > 100
    assert len(uninstall()) == 0
    assert differences(before, attributes()) == set()


def test_classes_are_the_same_after_swapping_again(fastestimator: ModuleType) -> None:
    with install():
        first = fastestimator.op.tensorop.LambdaOp
    with install():
        assert fastestimator.op.tensorop.LambdaOp is first


def test_a_block_leaves_what_it_has_found() -> None:
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


def with_noise(x: Any) -> Any:
    import tensorflow as tf

    return x + tf.random.uniform((2,))


def failing(x: Any) -> Any:
    raise ZeroDivisionError


def drawn(fastestimator: ModuleType, **how: Any) -> list[list[float]]:
    """What a network in TensorFlow draws in each of two openings, from the same seed."""
    import tensorflow as tf

    ops = fastestimator.op.tensorop
    network = sys.modules["fastestimator.network"].TFNetwork([ops.LambdaOp(with_noise, "x", "y")])
    tf.random.set_seed(3)
    found = []
    for _ in range(2):
        with network("eval", 1, "", **how):
            results = [network.run_step({"x": tf.zeros(2)})["y"].numpy() for _ in range(2)]
        found.append([float(value) for result in results for value in result])
    batch = {"x": tf.zeros(2)}
    found.append([float(value) for value in network.transform(batch, "eval")["y"].numpy()])
    return found


@pytest.mark.parametrize("eager", [False, True])
def test_random_numbers_start_over_or_go_on(fastestimator: ModuleType, eager: bool) -> None:
    expected = drawn(fastestimator, eager=eager)
    assert (expected[0] == expected[1]) is not eager
    with install(reseed=True):
        assert drawn(fastestimator, eager=eager) == expected
        with install():
            found = drawn(fastestimator, eager=eager)
            assert found[0] == expected[0]
            assert found[0] != found[1]
        assert drawn(fastestimator, eager=eager) == expected
        with install(ops=False, reseed=True):
            assert drawn(fastestimator, eager=eager) == expected
    with install():
        assert drawn(fastestimator, eager=eager) == found


def mean_square(y: Any) -> Any:
    return (y**2).mean()


def test_compiled_steps(fastestimator: ModuleType) -> None:
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
    with pytest.raises(ValueError, match="reseed"):
        install(reseed=True, compile=True)


def test_starting_over_is_the_end_of_what_failed(fastestimator: ModuleType) -> None:
    """A step that raises leaves the network usable, and starts random numbers over as well."""
    import tensorflow as tf

    with install(reseed=True):
        ops = fastestimator.op.tensorop
        network = sys.modules["fastestimator.network"].TFNetwork([ops.LambdaOp(failing, "x", "y")])
        for _ in range(2):
            with pytest.raises(ZeroDivisionError), network("eval", 1, ""):
                network.run_step({"x": tf.zeros(2)})
        # Keras names layers from the start
        assert tf.keras.layers.Dense(1).name == "dense"


def test_it_can_be_printed() -> None:
    swap = install()
    lines = str(swap).splitlines()
    assert f"{len(swap.changes)} names in fastestimator are fastnet's:" in lines
    assert "  fastestimator.network.build -> fastnet.integrations.fastestimator.building.build" in (
        lines
    )
    assert "  fastestimator.network.TFNetwork -> fastnet.network.tf.network.TFNetwork" in lines
    text = str(uninstall())
    assert "names in fastestimator are its own again:" in text
    assert "  fastestimator.network.TFNetwork -> fastestimator.network.TFNetwork" in text
    assert str(swap.changes) == "Nothing in fastestimator is fastnet's."
    assert str(uninstall()) == "Nothing in fastestimator was fastnet's."


def test_the_programs_own_names_stay() -> None:
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


def test_an_unknown_version_is_refused(
    fastestimator: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fastestimator, "__version__", "2.4.1")
    before = attributes()
    with pytest.raises(UnknownVersionError) as caught:
        install()
    assert str(caught.value) == (
        "fastnet supports FastEstimator 1.7.0, but 2.4.1 is installed. Install a supported "
        "version, or import what you need from fastnet itself: it has the same names."
    )
    assert differences(before, attributes()) == set()


def test_an_unknown_version_is_refused_before_it_is_imported() -> None:
    in_a_fresh_process(
        "import importlib.metadata, sys\n"
        "from fastnet.integrations.fastestimator import UnknownVersionError, install\n"
        "importlib.metadata.version = lambda name: '1.6.0'\n"
        "finders = list(sys.meta_path)\n"
        "try:\n"
        "    install()\n"
        "except UnknownVersionError as error:\n"
        "    assert 'but 1.6.0 is installed' in str(error)\n"
        "else:\n"
        "    raise AssertionError('it was not refused')\n"
        "assert 'fastestimator' not in sys.modules\n"
        "assert sys.meta_path == finders\n"
    )


def test_only_the_integration_imports_it() -> None:
    root = Path(fastnet.__file__).parent
    for path in root.rglob("*.py"):
        if path.is_relative_to(root / "integrations"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Call) and node.args:
                first = node.args[0]  # import_module("…")
                names = [str(first.value)] if isinstance(first, ast.Constant) else []
            assert not any(name.split(".")[0] == "fastestimator" for name in names), path


def in_a_fresh_process(code: str) -> None:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]


def test_nothing_is_imported_before_the_program_does() -> None:
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
        "install()\n"
        "import fastestimator\n"  # which imports nothing of itself
        "assert 'tensorflow' not in sys.modules\n"
    )


def test_before_it_is_imported() -> None:
    """Whatever is imported first, all of it is swapped when that import is done, and lazily."""
    in_a_fresh_process(
        "import sys\n"
        "from fastnet.integrations.fastestimator import install, uninstall\n"
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
        "uninstall()\n"
        "assert 'fastnet' not in fe.Network.__module__\n"
        "from fastestimator.estimator import TFNetwork\n"
        "assert not issubclass(TFNetwork, fastnet.TFNetwork)\n"
        "for name, module in list(sys.modules.items()):\n"
        "    if name.startswith('fastestimator'):\n"
        "        for key, value in vars(module).items():\n"
        "            where = getattr(value, '__module__', None) or ''\n"
        "            assert not str(where).startswith('fastnet'), (name, key)\n"
        "            assert not (isinstance(value, type) and '_stands_for' in vars(value)), key\n"
    )


def test_where_there_is_no_fastestimator() -> None:
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
        "assert text == ('FastEstimator is not installed, so fastnet cannot replace it. Install '\n"
        "    'it with `pip install fastestimator==1.7.0`, or import what you need from fastnet '\n"
        "    'itself: it has the same names.'), text\n"
    )


def test_what_cannot_be_imported_is_left_out() -> None:
    in_a_fresh_process(
        "import sys\n"
        "sys.modules['torchvision'] = None\n"
        "from fastnet.integrations.fastestimator import install\n"
        "swap = install()\n"
        "import fastestimator.network\n"
        "told = 'fastestimator.op.tensorop.normalize: not swapped, as No module named \\'torchv'\n"
        "assert told in str(swap)\n"
        "assert 'fastestimator.op.tensorop.normalize.Normalize' not in swap.changes\n"
        "assert 'fastestimator.op.tensorop.permute.Permute' in swap.changes\n"
    )


NETWORK_MODULE = "fastestimator.network"
# what FastEstimator looks up, and a patch of which does nothing swapped: docs/fastestimator.md
IN_STEPS = {
    "Suppressor",
    "detach_tensors",
    "forward_numpyop",
    "forward_slicers",
    "get_batch_size",
    "get_inputs_by_op",
    "move_tensors_to_device",
    "reverse_slicers",
    "write_outputs_by_op",
}
OTHERS = {
    "NonContext",
    "_collect_models",
    "_optimizer_fn_from_string",
    "_optimizer_fn_to_optimizer",
    "filter_nones",
    "get_current_items",
    "sanity_assert_slicers",
    "to_list",
    "warn",
}


def looked_up(value: Any) -> Iterator[str]:
    """Name the globals that a function, or the methods of a class, look up when they are called."""
    functions = list(vars(value).values()) if isinstance(value, type) else [value]
    for function in functions:
        plain = getattr(getattr(function, "__func__", function), "python_function", function)
        plain = inspect.unwrap(getattr(plain, "__func__", plain))
        if isinstance(plain, FunctionType) and plain.__module__ == NETWORK_MODULE:
            codes = [plain.__code__]
            for code in codes:
                codes += [one for one in code.co_consts if isinstance(one, CodeType)]
                for instruction in dis.get_instructions(code):
                    if instruction.opname == "LOAD_GLOBAL":
                        yield instruction.argval


def test_each_name_is_decided_upon(fastestimator: ModuleType) -> None:
    module = sys.modules[NETWORK_MODULE]
    functions = [
        value
        for value in vars(module).values()
        if getattr(value, "__module__", None) == NETWORK_MODULE
    ]
    names = {name for value in functions for name in looked_up(value)}
    # functions, and what is made with classes that are no types to be told apart by
    called = {
        name
        for name in names & vars(module).keys()
        if name in ("NonContext", "Suppressor")
        or (
            callable(getattr(module, name))
            and name != "Lock"
            and not isinstance(getattr(module, name), type)
        )
    }
    assert called | {"TFNetwork", "TorchNetwork"} == {*HONOURED, *IN_STEPS, *OTHERS}


def test_a_patch_from_before_counts(fastestimator: ModuleType) -> None:
    with patch("fastestimator.network.get_device", return_value=torch.device("meta")), install():
        made = sys.modules[NETWORK_MODULE].TorchNetwork(
            [fastestimator.op.tensorop.LambdaOp(abs, "x", "y")]
        )
        assert made.device == torch.device("meta")


def test_functions_that_were_kept_go_on(fastestimator: ModuleType) -> None:
    with install():
        build, make = fastestimator.build, fastestimator.Network
    model = build(lambda: linear("torch"), "sgd")
    ops = [fastestimator.op.tensorop.model.ModelOp(model, "x", "y")]
    assert type(make(ops)).__mro__[1].__module__ == "fastnet.network.torch.network"
