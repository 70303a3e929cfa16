"""What each Python does first that a test starts: it takes PySpark from where it is installed.

Spark puts a zip of PySpark before all else on the path of its workers, and a zip keeps no bytecode: each of them would
compile PySpark anew (measured: 0.9 seconds instead of 0.2, and a pipeline of two queries starts eight).
"""

import sys

sys.path[:] = [path for path in sys.path if not (path.endswith(".zip") and "/pyspark/python/lib/" in path)]
