"""The tensor functions, in TensorFlow, under the names that ops and `fastnet.backend` call."""

from fastnet.backend.tf.control import *
from fastnet.backend.tf.gradients import *
from fastnet.backend.tf.images import *
from fastnet.backend.tf.losses import *
from fastnet.backend.tf.math import *
from fastnet.backend.tf.models import *
from fastnet.backend.tf.reductions import *
from fastnet.backend.tf.super_loss import *
from fastnet.backend.tf.tensors import *

# FastEstimator does not trace the contents of an object with this attribute.
_fe_state_whitelist = ()
