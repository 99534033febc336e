"""The tensor functions, in numpy, under the names that ops and `fastnet.backend` call."""

from fastnet.backend.numpy.curriculum import *
from fastnet.backend.numpy.gradients import *
from fastnet.backend.numpy.images import *
from fastnet.backend.numpy.losses import *
from fastnet.backend.numpy.math import *
from fastnet.backend.numpy.random import *
from fastnet.backend.numpy.reductions import *
from fastnet.backend.numpy.taking import *
from fastnet.backend.numpy.tensors import *
