"""The command line. It asks and tells, one file per noun; what is true is found out elsewhere."""

from inorder.cli.program import main

__all__ = ["main"]
