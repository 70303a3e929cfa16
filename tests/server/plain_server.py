"""A server of google.pubsub.v1 that knows nothing else, as Google's: it hides what ours knows beyond that."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import grpc


class PlainServer(grpc.GenericRpcHandler):
    """Passes the calls of google.pubsub.v1 on, without their metadata, and errors back, without their details."""

    def __init__(self, address: str) -> None:
        self._behind = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self._server = grpc.server(ThreadPoolExecutor(16))
        self._server.add_generic_rpc_handlers((self,))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def service(self, details: Any) -> Any:
        method = details.method
        if not method.startswith("/google.pubsub.v1."):
            return None
        if method.endswith("/StreamingPull"):
            return grpc.stream_stream_rpc_method_handler(partial(self._stream, method))
        return grpc.unary_unary_rpc_method_handler(partial(self._call, method))

    def _call(self, method: str, request: bytes, context: Any) -> Any:
        try:
            return self._behind.unary_unary(method)(request, timeout=30)
        except grpc.RpcError as error:
            context.abort(error.code(), error.details())

    def _stream(self, method: str, requests: Any, context: Any) -> Any:
        call = self._behind.stream_stream(method)(_until_it_ends(requests))
        context.add_callback(call.cancel)
        try:
            yield from call
        except grpc.RpcError as error:
            if context.is_active():
                context.abort(error.code(), error.details())

    def stop(self) -> None:
        self._server.stop(None).wait()
        self._behind.close()


def _until_it_ends(requests: Any) -> Any:
    with suppress(grpc.RpcError):  # the client has gone
        yield from requests
