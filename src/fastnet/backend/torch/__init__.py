"""PyTorch: the tensor functions that ops call, and what makes the package a `Framework`."""

from fastnet.backend.torch.control import *
from fastnet.backend.torch.ema import WeightAverager as WeightAverager
from fastnet.backend.torch.ema import copy_for_average as copy_for_average
from fastnet.backend.torch.gradients import *
from fastnet.backend.torch.held_state import attributes_of as attributes_of
from fastnet.backend.torch.held_state import get_held_state as get_held_state
from fastnet.backend.torch.held_state import saved_tensors_of as saved_tensors_of
from fastnet.backend.torch.held_state import submodules_of as submodules_of
from fastnet.backend.torch.images import *
from fastnet.backend.torch.learning_rate import get_lr as get_lr
from fastnet.backend.torch.learning_rate import set_lr as set_lr
from fastnet.backend.torch.losses import *
from fastnet.backend.torch.math import *
from fastnet.backend.torch.mixing import *
from fastnet.backend.torch.models import *
from fastnet.backend.torch.parallel_update import make_pass as make_pass
from fastnet.backend.torch.parallel_update import make_update as make_update
from fastnet.backend.torch.parameters import trainable_parameters as trainable_parameters
from fastnet.backend.torch.preserve_state import PreservedState as PreservedState
from fastnet.backend.torch.preserve_state import require_variables as require_variables
from fastnet.backend.torch.processes import describe_parallelism as describe_parallelism
from fastnet.backend.torch.random_state import load_random_state as load_random_state
from fastnet.backend.torch.random_state import random_state as random_state
from fastnet.backend.torch.reductions import *
from fastnet.backend.torch.run_state import load_model_state as load_model_state
from fastnet.backend.torch.run_state import model_state as model_state
from fastnet.backend.torch.run_state import tensor_makers as tensor_makers
from fastnet.backend.torch.run_state import to_block as to_block
from fastnet.backend.torch.saving import load_model as load_model
from fastnet.backend.torch.saving import save_model as save_model
from fastnet.backend.torch.setup import check_owner as check_owner
from fastnet.backend.torch.setup import make_optimizer as make_optimizer
from fastnet.backend.torch.super_loss import *
from fastnet.backend.torch.tensors import *

# FastEstimator does not trace the contents of an object with this attribute.
_fe_state_whitelist = ()
