"""What exists, as a server tells it."""

from typing import Any

from inorder.clock import SYSTEM_CLOCK
from inorder.errors import Unavailable
from inorder.options import TopicOptions
from inorder.pending import Pending
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.protocol.options import to_json
from inorder.transport.address import Address
from inorder.transport.grpc.own import OwnServer


class Lists:
    """A list of so many pages, of which each comes when the test says so. Stands for `Calls`."""

    def __init__(self, pages: int) -> None:
        self._pages = pages
        self._page = 0
        self.asked: Pending[bytes] = Pending()

    def repeated(self, method: str, request: bytes) -> Pending[bytes]:
        self.asked, self._page = Pending(), int(v1.ListTopicsRequest.FromString(request).page_token or 0)
        return self.asked

    def come(self) -> None:
        following = str(self._page + 1) if self._page + 1 < self._pages else ""
        topic = v1.Topic(name=f"projects/p/topics/t{self._page}", options=to_json(TopicOptions()))
        self.asked.set_result(v1.ListTopicsResponse(topics=[topic], next_page_token=following).SerializeToString())


def server_with(lists: Lists) -> OwnServer:
    calls: Any = lists
    return OwnServer(calls, Address("nowhere:1", project="p"), SYSTEM_CLOCK, v1.Description())


def test_a_list_may_have_thousands_of_pages() -> None:
    lists = Lists(2_000)
    listed = server_with(lists).list_topics()
    for _ in range(2_000):
        assert not listed.done()
        lists.come()
    assert [topic.name for topic in listed.result(0)] == [f"t{number}" for number in range(2_000)]


def test_a_list_of_which_a_page_does_not_come_fails() -> None:
    lists = Lists(3)
    listed = server_with(lists).list_topics()
    lists.come()
    lists.asked.set_exception(Unavailable("cut"))
    assert isinstance(listed.exception(0), Unavailable)
