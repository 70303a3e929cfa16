"""`python -m inorder` is the command `inorder`."""

import sys

from inorder.cli import main

if __name__ == "__main__":
    sys.exit(main())
