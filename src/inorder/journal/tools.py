"""Looking a journal over, and saving what can be read of a damaged one, whichever kind it is.

`verify` reads every byte, takes no lock and changes nothing; beside an owner that writes it may call the
last frames not durable, which is what they are. `repair` owns the folder while it works.
"""

import os

from inorder.journal.findings import Finding, Meaning, Progress, Repaired, Verified
from inorder.journal.layout import DATABASE, existing_folder
from inorder.journal.segment_tools import repair_segments, verify_segments
from inorder.journal.sqlite_tools import repair_database, verify_database

__all__ = ["Finding", "Meaning", "Progress", "Repaired", "Verified", "repair", "verify"]


def verify(
    folder: str | os.PathLike[str], progress: Progress | None = None, meaning: Meaning | None = None
) -> Verified:
    """Read everything and say what is damaged; with a `meaning`, also what is whole and cannot be decoded."""
    files = existing_folder(folder)
    return (verify_database if DATABASE in files.names() else verify_segments)(files, progress, meaning)


def repair(folder: str | os.PathLike[str]) -> Repaired:
    """Keep the readable prefix. What is cut, and all that comes behind it, is copied to `damaged-…` in the folder.

    A journal without a loss is left alone: an end that never was durable is cut by the next recovery.
    """
    files = existing_folder(folder)
    return (repair_database if DATABASE in files.names() else repair_segments)(files)
