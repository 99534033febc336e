"""The kernel alone: plain Python objects, no framework, so that nothing hides what it costs."""
