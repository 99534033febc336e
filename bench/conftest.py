"""One thread for every benchmark, before anything imports torch."""

from __future__ import annotations

from bench import machine

machine.use_one_thread()
