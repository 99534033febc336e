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
    "fastnet.profiling.profiler",
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
        "for make, name, kind in (\n"
        "    (lambda: fastnet.Network([]), 'torch', ModuleNotFoundError),\n"
        "    (lambda: fastnet.TorchNetwork, 'torch', AttributeError),\n"
        "    (lambda: fastnet.TFNetwork, 'tensorflow', AttributeError),\n"
        "):\n"
        "    try:\n"
        "        make()\n"
        "    except kind as error:\n"
        "        assert f'`pip install {name}`' in str(error), error\n"
        "    else:\n"
        "        raise AssertionError(f'it needs {name}')\n"
    )


def test_with_one_framework() -> None:
    pytest.importorskip("torch")
    run(
        "import sys\n"
        "sys.modules.update(tensorflow=None, keras=None)\n"
        "import fastnet\n"
        "from fastnet import *\n"
        "from fastnet.network import *\n"
        "assert not hasattr(fastnet, 'TFNetwork') and 'TFNetwork' not in dir()\n"
        "assert TorchNetwork is fastnet.TorchNetwork and callable(build) and schedule and steps\n"
    )


# notes which modules of fastnet look for a framework; others may look for it
WATCH = """
import sys
asked = []
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {others}:
            frame = sys._getframe(1)
            while 'importlib' in frame.f_code.co_filename:
                frame = frame.f_back
            asked.append((frame.f_globals.get('__name__', ''), name))
sys.meta_path.insert(0, Watch())
"""
ASSERT = """
assert not [one for one in asked if one[0].startswith('fastnet')], asked
assert not {others} & set(sys.modules)
"""
TORCH = """
import torch
import fastnet
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp
model = fastnet.build(lambda: torch.nn.Linear(2, 3), 'adam')
ops = [ModelOp(model, 'x', 'y'), CrossEntropy(('y', 't'), 'loss', from_logits=True)]
network = fastnet.Network([*ops, UpdateOp(model, 'loss')])
batch = {'x': torch.ones(4, 2), 't': torch.zeros(4, dtype=torch.int64)}
for mode in ('train', 'eval'):
    network.transform([batch], mode=mode)
"""
KERAS = """
import numpy as np
import fastnet
from fastnet.backend import to_tensor
from fastnet.op.numpyop import LambdaOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.slicer import AxisSlicer
from fastnet.util import to_number
import tensorflow as tf
layers = tf.keras.layers
model = fastnet.build(
    lambda: tf.keras.Sequential([layers.Input((2,)), layers.Dense(3)]), 'adam'
)
ops = [ModelOp(model, 'x', 'y'), CrossEntropy(('y', 't'), 'loss', from_logits=True)]
network = fastnet.Network(
    [*ops, UpdateOp(model, 'loss')], LambdaOp(lambda y: y.argmax(-1), 'y', 'class')
)
batch = {'x': np.ones((4, 2), 'float32'), 't': np.zeros(4, 'int64')}
network.transform([batch], mode='train')
with network(mode='eval', epoch=1, eager=True):
    network.run_step(to_tensor(batch, 'tf'))
double = fastnet.op.tensorop.LambdaOp(lambda x: 2 * x, 'x', 'y')
sliced = fastnet.TFNetwork(double, slicers=AxisSlicer(0, slice='x', unslice='y'))
assert to_number(sliced.transform(batch, mode='infer')['y']).shape == (4, 2)
"""


@pytest.mark.parametrize(
    ("framework", "program", "others"),
    [
        ("torch", TORCH, {"tensorflow", "keras", "tf_keras"}),
        pytest.param("tensorflow", KERAS, {"torch"}, marks=pytest.mark.tf),
    ],
)
def test_a_program_never_asks_for_another_framework(
    framework: str, program: str, others: set[str]
) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"needs {framework}")
    parts = [WATCH, program, ASSERT]
    run("".join(part.replace("{others}", str(others)) for part in parts))


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
