"""Batches as messages of a topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from inorder.errors import InvalidArgument
from inorder.journal.incoming import check_writer
from inorder.options import check_name
from inorder.spark.addresses import check_url
from inorder.transport.address import is_address

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class InorderTopic:
    """Rows as messages: their columns are `data`, `ordering_key` and `attributes`, and no others.

    Rows of a task keep their order, and a key that comes out of an operator is in one task. So messages of a key are
    published in the order of its rows.
    """

    url: str
    topic: str
    writer: str | None = None  # None: the query, by its checkpoint

    def __post_init__(self) -> None:
        given: object = self.url  # anything, whatever the annotation says
        if not isinstance(given, str) or not given:
            raise InvalidArgument(f"url: 'file:' and a folder, a path, or grpc://host:port, not {self.url!r}")
        check_url(self.url)
        check_name("topic", self.topic)
        if self.writer is not None:
            check_writer(self.writer)

    @property
    def guarantee(self) -> str:
        owner = "server" if is_address(self.url) else "owner of the folder"
        return f"exactly once: the {owner} publishes a batch once, by the numbers of its writer and batch"

    def check(self, rows: StructType) -> None:
        """Refuse rows that are no messages, and a topic that is not there."""
        from inorder.spark.sink import check_schema
        from inorder.spark.topics import check_topic

        check_schema(rows)
        check_topic(self.url, self.topic)

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        from inorder.spark import register

        register(rows.sparkSession)  # a batch may come with a session of its own
        options = {"url": self.url, "topic": self.topic, "epoch": str(batch_id)}
        if self.writer is not None:
            options["writer"] = self.writer
        rows.write.format("inorder").options(**options).mode("append").save()
