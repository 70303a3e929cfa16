"""One line out of the many that Spark raises."""

import pytest

from inorder.spark.reasons import reason_in

TRACEBACK = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: An exception was raised by \
the Python Proxy. Return Message: Traceback (most recent call last):
  File "py4j/clientserver.py", line 642, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "operations.py", line 80, in _unread
    raise InvalidEvent(
{raised}

	at org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
Caused by: something else
 SQLSTATE: XXKST"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TRACEBACK.format(raised="inorder.errors.InvalidEvent: 3 rows cannot be read"), "3 rows cannot be read"),
        (TRACEBACK.format(raised="RuntimeError: not now"), "RuntimeError: not now"),
        ("[STREAM_FAILED] Query [id = 1] terminated with exception: the disk is full SQLSTATE: 1", "the disk is full"),
        (
            "[UNRESOLVED_COLUMN] no x. Did you mean y? SQLSTATE: 42703; line 1 pos 7;\n'Project",
            "[UNRESOLVED_COLUMN] no x.",
        ),
        (
            "Job aborted.\nmore\nCaused by: java.io.IOException: a\n\tat x\nCaused by: no space left\n\tat y",
            "no space left",
        ),
        ("one line", "one line"),
        ("", ""),
    ],
)
def test_the_reason_is_found(text: str, reason: str) -> None:
    found = reason_in(text)
    assert found.startswith(reason)
    assert "\n" not in found
