"""The program that `fastnet demo` runs: digits.py, and what it needs of each framework."""
