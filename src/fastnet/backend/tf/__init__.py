"""TensorFlow: the tensor functions that ops call, and what makes the package a `Framework`."""

from fastnet.backend.tf.control import *
from fastnet.backend.tf.ema import WeightAverager as WeightAverager
from fastnet.backend.tf.ema import copy_for_average as copy_for_average
from fastnet.backend.tf.gradients import *
from fastnet.backend.tf.held_state import attributes_of as attributes_of
from fastnet.backend.tf.held_state import get_held_state as get_held_state
from fastnet.backend.tf.held_state import saved_tensors_of as saved_tensors_of
from fastnet.backend.tf.held_state import submodules_of as submodules_of
from fastnet.backend.tf.images import *
from fastnet.backend.tf.losses import *
from fastnet.backend.tf.math import *
from fastnet.backend.tf.models import *
from fastnet.backend.tf.models import TFPass
from fastnet.backend.tf.optimizers import get_lr as get_lr
from fastnet.backend.tf.optimizers import set_lr as set_lr
from fastnet.backend.tf.preserve_state import PreservedState as PreservedState
from fastnet.backend.tf.processes import describe_parallelism as describe_parallelism
from fastnet.backend.tf.reductions import *
from fastnet.backend.tf.run_state import load_model_state as load_model_state
from fastnet.backend.tf.run_state import load_random_state as load_random_state
from fastnet.backend.tf.run_state import model_state as model_state
from fastnet.backend.tf.run_state import random_state as random_state
from fastnet.backend.tf.run_state import tensor_makers as tensor_makers
from fastnet.backend.tf.run_state import to_block as to_block
from fastnet.backend.tf.saving import load_model as load_model
from fastnet.backend.tf.saving import save_model as save_model
from fastnet.backend.tf.setup import check_owner as check_owner
from fastnet.backend.tf.setup import make_optimizer as make_optimizer
from fastnet.backend.tf.super_loss import *
from fastnet.backend.tf.tensors import *
from fastnet.backend.tf.update import TFUpdate

make_pass = TFPass
make_update = TFUpdate

# FastEstimator does not trace the contents of an object with this attribute.
_fe_state_whitelist = ()
