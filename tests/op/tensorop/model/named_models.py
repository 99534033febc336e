"""Models that return values by name."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple
from typing import Any

from torch import nn
from torch.nn.functional import cross_entropy


@dataclasses.dataclass
class Output(OrderedDict):  # type: ignore[type-arg]
    """What models of Hugging Face return: a dict of what is not None, with attributes, too."""

    loss: Any = None
    logits: Any = None
    hidden_states: Any = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                OrderedDict.__setitem__(self, field.name, value)


@dataclasses.dataclass
class Plain:
    logits: Any
    loss: Any = None


Pair = namedtuple("Pair", ["logits", "hidden"])


class Encoder(nn.Module):
    """(batch, length) of words -> scores, as Hugging Face has it."""

    form: Any = Output

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 6)
        self.head = nn.Linear(6, 4)

    def forward(
        self,
        input_ids: Any = None,
        token_type_ids: Any = None,
        attention_mask: Any = None,
        **kwargs: Any,
    ) -> Any:
        assert token_type_ids is None
        hidden = self.table(input_ids) * attention_mask[..., None]
        logits = self.head(hidden.sum(1) / attention_mask.sum(1, keepdim=True))
        if "labels" in kwargs:
            return self.form(logits=logits, loss=cross_entropy(logits, kwargs["labels"]))
        if self.form is Pair:
            return Pair(logits, hidden)
        return self.form(logits=logits)
