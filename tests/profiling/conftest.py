"""Fixtures of the tests of profiles."""

from __future__ import annotations

from tests.torch_settings import one_thread, settings_are_put_back

__all__ = ["one_thread", "settings_are_put_back"]
