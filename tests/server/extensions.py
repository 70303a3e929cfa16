"""The calls of inorder.v1, as a client without a library makes them."""

from collections.abc import Callable, Iterator
from typing import Any

import grpc

from inorder.protocol import inorder_v1_pb2 as v1
from inorder.protocol.facts import DETAILS, error_of

_SERVICE = v1.DESCRIPTOR.services_by_name["Inorder"]


class Extensions:
    """Each call by its name: `extensions.GetTopic(topic=…)`. What is refused is raised as it was on the server."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = _SERVICE.methods_by_name[name]
        request, answer = (getattr(v1, kind.name, None) for kind in (method.input_type, method.output_type))
        made = self._channel.unary_stream if method.server_streaming else self._channel.unary_unary
        call = made(
            f"/{_SERVICE.full_name}/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=answer.FromString if answer else bytes,
        )

        def run(**fields: Any) -> Any:
            try:
                answered = call(request(**fields), timeout=30)
            except grpc.RpcError as error:
                raise raised(error) from None
            return _each(answered) if method.server_streaming else answered

        return run


def _each(answers: Any) -> Iterator[Any]:
    try:
        yield from answers
    except grpc.RpcError as error:
        raise raised(error) from None
    finally:
        answers.cancel()


def raised(error: Any) -> Exception:
    details = dict(error.trailing_metadata() or ()).get(DETAILS)
    return error_of(error.code().value[0], error.details(), details)
