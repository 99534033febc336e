"""What a network would run and why, in words, as data and as pictures."""

from fastnet.explain.explanation import Explanation, explain_subject
from fastnet.explain.findings import Finding
from fastnet.explain.items import Item
from fastnet.explain.keys import Key, Life
from fastnet.explain.schedules import Change, Schedule, Schedules
from fastnet.explain.subject import Subject

__all__ = [
    "Change",
    "Explanation",
    "Finding",
    "Item",
    "Key",
    "Life",
    "Schedule",
    "Schedules",
    "Subject",
    "explain_subject",
]
