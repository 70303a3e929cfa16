"""Where the batches of a stream go. A batch that comes again replaces what it wrote before, or is ignored.

A sink is a frozen dataclass whose fields are plain values, as they stand in a file; its `__post_init__` refuses what
cannot be. It is called with the rows of a batch and its number. It may also have `check(schema)`, which refuses rows
that it could not write, and `guarantee`, which says in words why nothing is written twice. Nothing of Spark is loaded
before a batch is written.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

# The one place where formats are known: the module here, and the class in it.
SINKS: Final = {
    "parquet": ("files", "ParquetFolder"),
    "inorder": ("topic", "InorderTopic"),
    "console": ("console", "Console"),
    "jdbc": ("jdbc", "JdbcTable"),
    "delta": ("lakes", "DeltaTable"),
    "iceberg": ("lakes", "IcebergTable"),
}


def sink_class(format: str) -> type[Any]:
    """The class of a format that `SINKS` knows."""
    module, name = SINKS[format]
    found: type[Any] = getattr(import_module(f"{__name__}.{module}"), name)
    return found
