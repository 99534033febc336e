"""The kernel on plain Python objects, without a framework."""
