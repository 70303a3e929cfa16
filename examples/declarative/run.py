"""Publishes some orders out of order, and runs the pipeline in this folder over them. It needs pyspark[pipelines].

It does what `spark-pipelines run` does. That command of Spark 4.3.0 ends with an error once a pipeline has run Python
on its executors, as it then gets a message about accumulators that it does not know; the pipeline is done by then.
"""

import os
import sys
from pathlib import Path

from inorder import Message
from inorder.broker import MessageQueue

HERE = Path(__file__).resolve().parent
ARRIVED = [("order-1", 2, "paid"), ("order-2", 1, "placed"), ("order-1", 1, "placed"), ("order-1", 1, "placed"),
           ("order-2", 2, "cancelled"), ("order-1", 4, "delivered"), ("order-1", 3, "shipped")]  # fmt: skip


def publish(folder: Path) -> None:
    queue = MessageQueue.open(folder)
    queue.register_topic("orders", {"message_retention_duration": 7 * 86_400})
    queue.publish(
        "orders",
        [
            Message(event.encode(), ordering_key=order, attributes={"sequence": str(sequence)})
            for order, sequence, event in ARRIVED
        ],
    )
    queue.close()


def run(spec: Path, *, anew: bool) -> None:
    from pyspark.errors import PySparkValueError
    from pyspark.pipelines import cli

    try:
        cli.run(spec_path=spec, full_refresh=[], full_refresh_all=anew, refresh=[], dry=False)
    except PySparkValueError as error:
        if error.getCondition() != "UNKNOWN_RESPONSE" or "__python_accumulator__" not in str(error):
            raise


if __name__ == "__main__":
    data = Path("data").resolve()
    is_new = not data.exists()
    if is_new:
        publish(data)
    os.environ["INORDER_ORDERS"] = f"file:{data}"
    os.environ.setdefault("SPARK_REMOTE", "local[2]")  # pipelines know only Spark Connect
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    run(HERE / "spark-pipeline.yml", anew=is_new)  # checkpoints that are there by then are of another topic
    print(f"The tables are below {Path('spark-warehouse').resolve()}")
