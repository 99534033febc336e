"""Ops that run other ops: what those on tensors and those on arrays have in common."""
