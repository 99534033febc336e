"""Older forms of the API."""
