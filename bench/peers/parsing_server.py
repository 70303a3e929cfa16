"""Our server, but it publishes as one would write it: each message is parsed by protobuf and becomes an object.

Everything else is the same, so the difference is what it costs to make objects: `python -m bench.peers.parsing_server
serve …` takes what `inorder` takes.
"""

from __future__ import annotations

import sys

from google.pubsub_v1.types import pubsub

from inorder.cli import main
from inorder.message import Message
from inorder.server import serve
from inorder.server.publisher import Publisher
from inorder.server.status import Context, parsed

PublishRequest = pubsub.PublishRequest.pb()
PublishResponse = pubsub.PublishResponse.pb()


class ParsingPublisher(Publisher):
    async def publish(self, raw: bytes, context: Context) -> bytes:
        request = parsed(PublishRequest, raw)
        messages = [Message(one.data, dict(one.attributes), one.ordering_key) for one in request.messages]
        ids = self._broker.publish(self._names.topic(request.topic), messages)
        response: bytes = PublishResponse(message_ids=ids).SerializeToString()
        return response


if __name__ == "__main__":
    serve.Publisher = ParsingPublisher  # type: ignore[misc]
    sys.exit(main(sys.argv[1:]))
