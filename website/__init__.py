"""What `make docs` adds to the pages of docs/: the reference, the measurements, and links."""
