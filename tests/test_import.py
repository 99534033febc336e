"""`import fastnet` and what it does not import."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

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

# what a program takes from them, by the paths that FastEstimator has
NAMES = {
    "fastnet": "BaseNetwork Network TorchNetwork build backend load_checkpoint network op "
    "save_checkpoint schedule slicer steps util",
    "fastnet.backend": "argmax binary_crossentropy cast categorical_crossentropy clip_by_value "
    "concat dice_score expand_dims feed_forward focal_loss get_gradient get_lr hinge huber l1_loss "
    "l2_regularization load_model matmul maximum mean_squared_error ones_like permute reduce_max "
    "reduce_mean reduce_min reduce_std reduce_sum reshape save_model set_lr smooth_l1_loss "
    "sparse_categorical_crossentropy squeeze to_shape to_tensor to_type update_model watch where "
    "zeros_like",
    "fastnet.compat.v1": "BaseNetwork Network build",
    "fastnet.network": "BaseNetwork Network TorchNetwork build",
    "fastnet.op.numpyop": "Batch Delete LambdaOp NumpyOp RemoveIf forward_numpyop meta univariate",
    "fastnet.op.numpyop.meta": "Fuse OneOf Repeat Sometimes",
    "fastnet.op.numpyop.univariate": "Binarize ChannelTranspose ExpandDims Hadamard Minmax Onehot "
    "Reshape ToArray",
    "fastnet.op.tensorop": "Argmax Average Delete Gather LambdaOp Normalize Permute Reshape "
    "Resize3D TensorOp UnHadamard augmentation gradient loss meta model",
    "fastnet.op.tensorop.augmentation": "CutMixBatch MixUpBatch",
    "fastnet.op.tensorop.gradient": "FGSM GradientOp Watch",
    "fastnet.op.tensorop.loss": "CrossEntropy DiceLoss FocalLoss Hinge L1_Loss L2Regularization "
    "L2Regularizaton LossOp MeanSquaredError SuperLoss",
    "fastnet.op.tensorop.loss.cross_entropy": "CrossEntropy",
    "fastnet.op.tensorop.loss.loss": "LossOp",
    "fastnet.op.tensorop.loss.mean_squared_error": "MeanSquaredError",
    "fastnet.op.tensorop.meta": "Fuse OneOf Repeat Sometimes",
    "fastnet.op.tensorop.model": "ModelOp UpdateOp",
    "fastnet.op.tensorop.model.model": "ModelOp",
    "fastnet.op.tensorop.model.update": "UpdateOp",
    "fastnet.op.tensorop.tensorop": "Delete LambdaOp TensorOp",
    "fastnet.schedule": "EpochScheduler RepeatScheduler Scheduler cosine_decay get_current_items "
    "get_signature_epochs",
    "fastnet.slicer": "AxisSlicer MeanUnslicer Slicer SlidingSlicer",
    "fastnet.util": "detach_tensors get_batch_size get_device get_num_devices "
    "move_tensors_to_device to_list to_number to_set",
}


def run(code: str) -> None:
    """Run code in a fresh interpreter."""
    subprocess.run([sys.executable, "-c", code], check=True)


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
        "try:\n"
        "    fastnet.Network([])\n"
        "except ImportError as error:\n"
        "    assert error.name == 'torch', error.name\n"
        "else:\n"
        "    raise AssertionError('it needs torch')\n"
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
        "from fastnet.op.tensorop import LambdaOp as TensorLambdaOp\n"
        "from fastnet.op.tensorop.loss import CrossEntropy\n"
        "from fastnet.op.tensorop.model import ModelOp, UpdateOp\n"
        "from fastnet.schedule import EpochScheduler\n"
        "from fastnet.slicer import AxisSlicer, MeanUnslicer, SlidingSlicer\n"
        "from fastnet.util import detach_tensors, get_batch_size, move_tensors_to_device\n"
        "from fastnet.util import to_number\n"
        "import tensorflow as tf\n"
        "assert 'tensorflow' in sys.modules\n"
        "layers = tf.keras.layers\n"
        "model = fastnet.build(\n"
        "    lambda: tf.keras.Sequential([layers.Input((2,)), layers.Dense(3)]),\n"
        "    EpochScheduler({1: 'adam', 2: None}),\n"
        "    mixed_precision=True,\n"
        ")\n"
        "ops = [\n"
        "    ModelOp(model, 'x', 'y'),\n"
        "    CrossEntropy(('y', 't'), 'loss', from_logits=True, class_weights={1: 2.0}),\n"
        "    UpdateOp(model, 'loss', merge_grad=2),\n"
        "]\n"
        "pops = [LambdaOp(lambda y: y.argmax(-1), 'y', 'class')]\n"
        "network = fastnet.Network(ops, pops)\n"
        "assert type(network) is fastnet.TFNetwork\n"
        "batch = {'x': np.ones((4, 2), 'float32'), 't': np.zeros(4, 'int64'), 'name': 'a'}\n"
        "for mode in ('train', 'eval'):\n"
        "    network.transform([batch, batch], mode=mode)\n"
        "    network.transform(batch, mode=mode)\n"
        "    with network(mode=mode, epoch=1, eager=True):\n"
        "        network.run_step(to_tensor(batch, 'tf'))\n"
        "slicers = [AxisSlicer(0, slice='x', unslice='y'), MeanUnslicer('loss')]\n"
        "double = TensorLambdaOp(lambda x: (2 * x, tf.reduce_mean(x)), 'x', ['y', 'loss'])\n"
        "fastnet.TFNetwork([double], slicers=slicers).transform(batch, mode='infer')\n"
        "sliding = SlidingSlicer([-1, 1], slice='x', unslice=['x', 'y'])\n"
        "triple = TensorLambdaOp(lambda x: 3 * x, 'x', 'y')\n"
        "fastnet.TFNetwork([triple], slicers=sliding).transform(batch, mode='infer')\n"
        "tensors = to_tensor(batch, 'tf')\n"
        "assert get_batch_size(tensors) == 4 and to_number(tensors['x']).shape == (4, 2)\n"
        "move_tensors_to_device(detach_tensors(tensors), 'cpu')\n"
        "assert not [one for one in asked if one[0].startswith('fastnet')], asked\n"
        "assert 'torch' not in sys.modules\n"
    )


def test_names() -> None:
    run(
        "import importlib\n"
        f"for name, exports in {NAMES}.items():\n"
        "    module = importlib.import_module(name)\n"
        "    listed = dir(module)\n"
        "    for export in exports.split():\n"
        "        assert getattr(module, export) is not None, (name, export)\n"
        "        assert export in listed, (name, export)\n"
    )


def test_a_name_that_there_is_not() -> None:
    import fastnet

    with pytest.raises(AttributeError) as caught:
        _ = fastnet.nothing
    assert str(caught.value) == "module 'fastnet' has no attribute 'nothing'"


def test_the_version() -> None:
    import fastnet

    assert isinstance(fastnet.__version__, str)
    assert fastnet.__version__[0].isdigit()


def test_the_function_build_is_not_hidden_by_its_module() -> None:
    run(
        "import fastnet.network.build, fastnet.network.base\n"
        "import fastnet\n"
        "from fastnet.network import build\n"
        "assert callable(build) and build is fastnet.build and build is fastnet.network.build\n"
    )
