"""Explain what a step of a network would run, as text, data and graphs."""

from fastnet.explain.explanation import Explanation
from fastnet.explain.findings import Finding
from fastnet.explain.items import Item
from fastnet.explain.keys import Key, Lifetime
from fastnet.explain.schedules import Schedule

__all__ = ["Explanation", "Finding", "Item", "Key", "Lifetime", "Schedule"]
