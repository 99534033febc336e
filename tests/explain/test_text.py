"""An explanation as text."""

from __future__ import annotations

import torch

import fastnet
from fastnet.explain import Explanation
from fastnet.network import TorchNetwork
from fastnet.op.numpyop import LambdaOp as LambdaArray
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.meta import Sometimes
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler

TEXT = """\
TorchNetwork in mode 'train', epoch 2, ds_id 'a', on cpu
model 'line' with SGD (learning rate 0.01)

Ops (5 active, 2 inactive)
  0  Sometimes     x -> x        prob=0.5
       LambdaOp    x -> x
  1  ModelOp       x -> y        model 'line'
  2  LambdaOp      y -> heat     NOT NEEDED; from EpochScheduler
  3  CrossEntropy  y, t -> loss
  4  UpdateOp      loss ->       model 'line'; computes gradients; deferred
  -  LambdaOp      y -> cold     inactive: EpochScheduler gives LambdaOp in epoch 2
  -  LambdaOp      y -> score    inactive: runs in mode 'eval' only

Postprocessing (1 active)
  0  LambdaOp  y -> label

Keys
  key    from    read by             end                  in the result
  t      batch   op 3                dropped at op 3      from batch
  x      batch   op 0                overwritten at op 0
         op 0    op 1                dropped at op 1      from batch
  y      op 1    op 2, op 3, post 0  returned             from ops
  heat   op 2    nothing             dropped at op 2      -
  loss   op 3    op 4                returned             from ops
  label  post 0                                           from postprocessing
  Other keys of the batch are returned unchanged.

Schedules
  ops[2], EpochScheduler: from epoch 1 LambdaOp (y -> heat); from epoch 4 LambdaOp (y -> cold)

Findings (2)
  * The key 'lables' is in desired_output_keys, but no active op writes it. Did you mean
    'label'? The result has it only if the batch does.
  * Op 2, LambdaOp (y -> heat), is not needed: 'heat' is neither read nor returned."""


def explanation() -> Explanation:
    model = fastnet.build(lambda: torch.nn.Linear(4, 3), "sgd", model_name="line")
    network = TorchNetwork(
        [
            Sometimes(LambdaOp(lambda x: x + 1, "x", "x")),
            ModelOp(model, "x", "y"),
            EpochScheduler(
                {1: LambdaOp(lambda y: y, "y", "heat"), 4: LambdaOp(lambda y: y, "y", "cold")}
            ),
            LambdaOp(lambda y: y, "y", "score", mode="eval"),
            CrossEntropy(("y", "t"), "loss", from_logits=True),
            UpdateOp(model, "loss"),
        ],
        postprocessing=[LambdaArray(lambda y: y.argmax(-1), "y", "label")],
    )
    network.device = torch.device("cpu")
    return network.explain("train", 2, "a", ["loss", "label", "lables"])


def test_the_whole_text() -> None:
    assert str(explanation()) == TEXT
    assert max(map(len, TEXT.splitlines())) <= 96
