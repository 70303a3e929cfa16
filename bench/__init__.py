"""Measures what the documentation claims. `python -m bench --help` says how to run it."""
