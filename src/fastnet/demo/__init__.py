"""The program that `fastnet demo` runs."""
