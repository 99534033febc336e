"""One thread for every benchmark, before anything imports a framework."""

from __future__ import annotations

from bench import machine

# TensorFlow is set up when its first benchmark runs: it takes seconds to import, and a core.
if machine.has("torch"):
    machine.use_threads("torch", 1)
