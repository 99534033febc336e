"""Settings as programs keep them in a module."""

scale = 2.0
table = {"scale": 2.0}
