"""`import fastnet` and what it does not import."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

from tests.subprocesses import run_python

HEAVY = "torch", "tensorflow", "keras", "tqdm", "matplotlib"

# every module that a program imports by name, none of which needs a framework to be there
MODULES = (
    "fastnet",
    "fastnet.backend",
    "fastnet.compat.v1",
    "fastnet.distributed",
    "fastnet.errors",
    "fastnet.network",
    "fastnet.network.base",
    "fastnet.network.build",
    "fastnet.network.checkpoint",
    "fastnet.network.plan_cache",
    "fastnet.op",
    "fastnet.op.numpyop",
    "fastnet.op.numpyop.meta",
    "fastnet.op.numpyop.univariate",
    "fastnet.op.tensorop",
    "fastnet.op.tensorop.augmentation",
    "fastnet.op.tensorop.gradient",
    "fastnet.op.tensorop.loss",
    "fastnet.op.tensorop.meta",
    "fastnet.op.tensorop.model",
    "fastnet.profiling",
    "fastnet.profiling.session",
    "fastnet.schedule",
    "fastnet.slicer",
    "fastnet.types",
    "fastnet.util",
)


def run(code: str) -> None:
    """Run code in a fresh interpreter."""
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr


def test_nothing_heavy_is_imported() -> None:
    run(
        "import importlib, sys\n"
        f"for name in {MODULES}:\n"
        "    importlib.import_module(name)\n"
        f"    found = {{module.split('.')[0] for module in sys.modules}} & set({HEAVY})\n"
        "    assert not found, (name, found)\n"
    )


def test_the_package_itself_imports_next_to_nothing() -> None:
    run(
        "import sys\n"
        "import fastnet\n"
        "for name in ('backend', 'network', 'op', 'schedule', 'slicer', '_execute', '_resolve'):\n"
        "    assert f'fastnet.{name}' not in sys.modules, name\n"
        "assert 'numpy' not in sys.modules\n"
    )


def test_where_there_is_no_framework() -> None:
    """Schedulers, slicers and numpy ops work on arrays; a network says what it lacks."""
    run(
        "import sys\n"
        "sys.modules.update(torch=None, tensorflow=None, keras=None, tqdm=None)\n"
        "import numpy as np\n"
        "import fastnet\n"
        "from fastnet.op.numpyop import LambdaOp, forward_numpyop\n"
        "from fastnet.op.tensorop import LambdaOp as TensorLambdaOp\n"
        "from fastnet.op.tensorop.loss import CrossEntropy\n"
        "from fastnet.schedule import EpochScheduler\n"
        "from fastnet.slicer import AxisSlicer, MeanUnslicer, SlidingSlicer\n"
        "data = {'x': np.ones(2)}\n"
        "forward_numpyop([LambdaOp(lambda x: x + 1, 'x', 'y')], data, {}, batched='np')\n"
        "assert data['y'].tolist() == [2, 2]\n"
        "assert len(AxisSlicer(axis=0, slice='x').slice_batches((np.ones(3),))) == 3\n"
        "EpochScheduler({1: 'a'}).get_current_value(1)\n"
        "TensorLambdaOp(len, 'x', 'y'), CrossEntropy(('a', 'b'), 'c')\n"
        "for make, name, extra in (\n"
        "    (lambda: fastnet.Network([]), 'torch', 'torch'),\n"
        "    (lambda: fastnet.TorchNetwork, 'torch', 'torch'),\n"
        "    (lambda: fastnet.TFNetwork, 'tensorflow', 'tf'),\n"
        "):\n"
        "    try:\n"
        "        make()\n"
        "    except ModuleNotFoundError as error:\n"
        "        assert error.name == name, error.name\n"
        "        assert f\"`pip install 'fastnet-runtime[{extra}]'`\" in str(error), error\n"
        "    else:\n"
        "        raise AssertionError(f'it needs {name}')\n"
    )


def test_a_torch_program_never_asks_for_tensorflow() -> None:
    pytest.importorskip("torch")
    run(
        "import sys\n"
        "asked = []\n"
        "class Watch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('tensorflow', 'keras', 'tf_keras'):\n"
        "            frame = sys._getframe(1)\n"
        "            while 'importlib' in frame.f_code.co_filename:\n"
        "                frame = frame.f_back\n"
        "            # torch itself may look for it\n"
        "            asked.append((frame.f_globals.get('__name__', ''), name))\n"
        "sys.meta_path.insert(0, Watch())\n"
        "import torch\n"
        "import fastnet\n"
        "from fastnet.op.tensorop.loss import CrossEntropy\n"
        "from fastnet.op.tensorop.model import ModelOp, UpdateOp\n"
        "model = fastnet.build(lambda: torch.nn.Linear(2, 3), 'adam')\n"
        "network = fastnet.Network([\n"
        "    ModelOp(model, 'x', 'y'),\n"
        "    CrossEntropy(('y', 't'), 'loss', from_logits=True),\n"
        "    UpdateOp(model, 'loss'),\n"
        "])\n"
        "batch = {'x': torch.ones(4, 2), 't': torch.zeros(4, dtype=torch.int64)}\n"
        "for mode in ('train', 'eval'):\n"
        "    network.transform([batch], mode=mode)\n"
        "assert not [one for one in asked if one[0].startswith('fastnet')], asked\n"
        "assert 'tensorflow' not in sys.modules\n"
    )


@pytest.mark.tf
def test_a_tensorflow_program_never_asks_for_torch() -> None:
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("needs TensorFlow")
    run(
        "import os, sys\n"
        "os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'\n"
        "asked = []\n"
        "class Watch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'torch':\n"
        "            frame = sys._getframe(1)\n"
        "            while 'importlib' in frame.f_code.co_filename:\n"
        "                frame = frame.f_back\n"
        "            # libraries may look for it\n"
        "            asked.append((frame.f_globals.get('__name__', ''), name))\n"
        "sys.meta_path.insert(0, Watch())\n"
        "import numpy as np\n"
        "import fastnet\n"
        "from fastnet.backend import to_tensor\n"
        "from fastnet.op.numpyop import LambdaOp\n"
        "from fastnet.op.tensorop.loss import CrossEntropy\n"
        "from fastnet.op.tensorop.model import ModelOp, UpdateOp\n"
        "from fastnet.slicer import AxisSlicer\n"
        "from fastnet.util import to_number\n"
        "import tensorflow as tf\n"
        "assert 'tensorflow' in sys.modules\n"
        "layers = tf.keras.layers\n"
        "model = fastnet.build(\n"
        "    lambda: tf.keras.Sequential([layers.Input((2,)), layers.Dense(3)]), 'adam'\n"
        ")\n"
        "ops = [\n"
        "    ModelOp(model, 'x', 'y'),\n"
        "    CrossEntropy(('y', 't'), 'loss', from_logits=True),\n"
        "    UpdateOp(model, 'loss'),\n"
        "]\n"
        "network = fastnet.Network(ops, LambdaOp(lambda y: y.argmax(-1), 'y', 'class'))\n"
        "batch = {'x': np.ones((4, 2), 'float32'), 't': np.zeros(4, 'int64')}\n"
        "network.transform([batch], mode='train')\n"
        "with network(mode='eval', epoch=1, eager=True):\n"
        "    network.run_step(to_tensor(batch, 'tf'))\n"
        "double = fastnet.op.tensorop.LambdaOp(lambda x: 2 * x, 'x', 'y')\n"
        "sliced = fastnet.TFNetwork(double, slicers=AxisSlicer(0, slice='x', unslice='y'))\n"
        "assert to_number(sliced.transform(batch, mode='infer')['y']).shape == (4, 2)\n"
        "assert not [one for one in asked if one[0].startswith('fastnet')], asked\n"
        "assert 'torch' not in sys.modules\n"
    )


@pytest.mark.parametrize("name", ["fastnet", "fastnet.network", "fastnet.compat.v1"])
def test_dir_lists_the_public_names(name: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("tensorflow")
    module = importlib.import_module(name)
    assert set(module.__all__) <= set(dir(module))


def test_a_name_that_there_is_not() -> None:
    import fastnet

    with pytest.raises(AttributeError) as caught:
        _ = fastnet.nothing
    assert str(caught.value) == "module 'fastnet' has no attribute 'nothing'"


def test_the_function_build_is_not_hidden_by_its_module() -> None:
    run(
        "import fastnet.network.build, fastnet.network.base\n"
        "import fastnet\n"
        "from fastnet.network import build\n"
        "assert callable(build) and build is fastnet.build and build is fastnet.network.build\n"
    )
