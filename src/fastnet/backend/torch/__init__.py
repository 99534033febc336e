"""The tensor functions, in PyTorch, under the names that ops and `fastnet.backend` call."""

from fastnet.backend.torch.control import *
from fastnet.backend.torch.gradients import *
from fastnet.backend.torch.images import *
from fastnet.backend.torch.losses import *
from fastnet.backend.torch.math import *
from fastnet.backend.torch.mixing import *
from fastnet.backend.torch.models import *
from fastnet.backend.torch.reductions import *
from fastnet.backend.torch.super_loss import *
from fastnet.backend.torch.tensors import *

# FastEstimator does not trace the contents of an object with this attribute.
_fe_state_whitelist = ()
