"""The report that Traceability writes, and what it reads on networks, ops and models for that."""

from __future__ import annotations

import os
import re
from typing import Any

import fastestimator as fe
import pydot
from fastestimator.op.numpyop.univariate import Onehot
from fastestimator.op.tensorop import LambdaOp
from fastestimator.op.tensorop.loss import CrossEntropy
from fastestimator.op.tensorop.meta import Fuse, OneOf, Repeat, Sometimes
from fastestimator.op.tensorop.model import ModelOp, UpdateOp
from fastestimator.schedule import EpochScheduler
from fastestimator.slicer import AxisSlicer
from fastestimator.trace.io import Traceability
from recording import digits, mlp

# parameters that only fastnet has: their rows, and what their number changes around other rows
ADDED = re.compile(
    r"^.*textit\{(open\\_axes|compile|ignore\\_index|label\\_smoothing|axis"
    r"|eval\\_layers|clip\\_norm|clip\\_value|outputs|rest|weight|skip\\_nonfinite|model\\_losses)\}"
    r"&(None|\\seqsplit\{(0\.0|False|True|`carry')\})\\\\.*\n"
    r"|^\\rowcolor.*\n|\\bottomrule",
    re.MULTILINE,
)


class Report(Traceability):
    """The report without plots, and without drawings, which need Graphviz: these become text."""

    def _document_training_graphs(self) -> None:
        pass

    def _document_fe_graph(self) -> None:
        self.drawings: list[str] = []
        for mode in ("train", "eval"):
            for ds_id in self.system.pipeline.get_ds_ids(epoch=1, mode=mode):
                self.drawings.append(plain(self._draw_diagram(mode, 1, ds_id).to_string()))


def plain(text: str) -> str:
    """Number the ids of objects in the order in which they turn up."""
    found: dict[str, str] = {}
    text = re.sub(r"\d{9,}", lambda one: found.setdefault(one[0], f"id{len(found)}"), text)
    return re.sub(r"/tmp/[\w/.\\-]+|\d+\.\d+|\d{2}:\d{2}:\d{2}|0x\w+", "*", text)


def unchanged(value: Any) -> Any:
    return value


def main(framework: str, folder: str) -> dict[str, Any]:
    pydot.Dot.create = lambda *args, **kwargs: b""  # only asks whether Graphviz is there
    pipeline = fe.Pipeline(
        train_data=digits(0, 64),
        eval_data={"one": digits(64, 96), "two": digits(96, 128)},
        ops=Onehot(inputs="y", outputs="onehot", num_classes=10),
        batch_size=32,
        num_process=0,
    )

    # functions with names: what FastEstimator makes of a lambda's text may mix up its tables
    def make() -> Any:
        return mlp(framework)

    def same(name: str, **settings: Any) -> LambdaOp:
        return LambdaOp(fn=unchanged, inputs=name, outputs=name, **settings)

    model = fe.build(make, optimizer_fn=EpochScheduler({1: "adam", 2: "sgd"}))

    network = fe.Network(
        [
            Sometimes(same("x"), prob=0.5),
            OneOf(same("x"), same("x")),
            Fuse([same("x"), LambdaOp(fn=unchanged, inputs="x", outputs="z")]),
            Repeat(same("z"), repeat=2),
            EpochScheduler({1: same("x", ds_id="two"), 2: None}),
            ModelOp(model=model, inputs="x", outputs="scores"),
            CrossEntropy(inputs=("scores", "onehot"), outputs="loss", from_logits=True),
            UpdateOp(model=model, loss_name="loss"),
        ]
    )
    estimator = fe.Estimator(pipeline, network, epochs=1, log_steps=None, traces=Report(folder))
    estimator.fit("Digits reported")
    report = estimator.traces[0]
    assert isinstance(report, Report)
    slicer = AxisSlicer(axis=1, slice="x")
    (path,) = [name for name in os.listdir(report.save_dir) if name.endswith(".tex")]
    with open(os.path.join(report.save_dir, path)) as file:
        text = file.read()
    return {
        "drawings": report.drawings,
        "tables": [(one.name, one.type.__name__) for one in report.config_tables],
        "slicer": [(one.name, one.type.__name__) for one in slicer.fe_summary()],
        "model": [one.name for one in model.fe_summary()],
        "text": plain(
            ADDED.sub("", text[text.index("Parameters") : text.index("System Configuration")])
        ),
    }
