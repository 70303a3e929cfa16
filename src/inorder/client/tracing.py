"""Traces of OpenTelemetry: who publishes a message begins a span, and who handles it continues the trace.

The context travels with the message, in attributes of the names that Google's clients use, so that a trace also goes
on where one of the two is theirs. They are reserved: no program can set them, and each is added to what was checked.
"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import AbstractContextManager
from importlib.metadata import version
from typing import Any

from inorder.client.listeners import Handler, awaited
from inorder.errors import FailedPrecondition
from inorder.message import Entry, Message
from inorder.options import MAX_ATTRIBUTES, MAX_MESSAGE_BYTES
from inorder.pending import Pending
from inorder.pool.functions import is_async

PREFIX = "googclient_"  # traceparent and tracestate, as W3C has them, follow it


class Tracing:
    """Makes spans by the provider that the program has configured; without one they cost little and go nowhere."""

    def __init__(self) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ModuleNotFoundError as error:
            raise FailedPrecondition(f"tracing needs {error.name}: pip install 'inorder[tracing]'") from None
        self._trace = trace
        self._tracer = trace.get_tracer("inorder", version("inorder"))
        self._propagator = TraceContextTextMapPropagator()

    def publishing(self, topic: str) -> Publication:
        """A span for what is published now: of the span that is current, if there is one."""
        span = self._tracer.start_span(
            f"{topic} create",
            kind=self._trace.SpanKind.PRODUCER,
            attributes={
                "messaging.system": "inorder",
                "messaging.operation.type": "create",
                "messaging.destination.name": topic,
            },
        )
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self._trace.set_span_in_context(span))
        return Publication(span, {f"{PREFIX}{name}": value for name, value in carrier.items()})

    def handling(self, subscription: str, handler: Handler) -> Handler:
        """The handler, with a span of its own for each message, in the trace that the message came with."""
        if is_async(handler):

            async def handle_async(message: Message) -> Any:
                with self._processing(subscription, message):
                    return await handler(message)

            return handle_async

        def handle(message: Message) -> Any:
            with self._processing(subscription, message):
                result = handler(message)
                # Here, as by its stream: else the span would end before it begins.
                return asyncio.run(awaited(result)) if inspect.isawaitable(result) else result

        return handle

    def _processing(self, subscription: str, message: Message) -> AbstractContextManager[Any]:
        carrier = {
            name.removeprefix(PREFIX): value for name, value in message.attributes.items() if name.startswith(PREFIX)
        }
        return self._tracer.start_as_current_span(
            f"{subscription} process",
            context=self._propagator.extract(carrier),
            kind=self._trace.SpanKind.CONSUMER,
            attributes={
                "messaging.system": "inorder",
                "messaging.operation.type": "process",
                "messaging.destination.subscription.name": subscription,
                "messaging.message.id": message.id,
                "messaging.gcp_pubsub.message.ordering_key": message.ordering_key or "",
                "messaging.gcp_pubsub.message.delivery_attempt": message.delivery_attempt,
            },
        )


class Publication:
    """The span of one call that publishes."""

    def __init__(self, span: Any, context: dict[str, str]) -> None:
        self._span = span
        self._context = context
        self._bytes = sum(len(name) + len(value.encode()) for name, value in context.items())

    def mark(self, entry: Entry) -> Entry:
        """The message with the context; as it is where that would break a limit."""
        key, data, attributes, size = entry
        own = attributes or {}
        if len(own) + len(self._context) > MAX_ATTRIBUTES or size + self._bytes > MAX_MESSAGE_BYTES:
            return entry
        return key, data, {**own, **self._context}, size + self._bytes

    def answered(self, answer: Pending[Any]) -> None:
        """It is stored, or has failed."""
        error = answer.exception()
        if error is not None:
            self._span.record_exception(error)
            self._span.set_attribute("error.type", type(error).__name__)
        else:
            ids = answer.result()
            if isinstance(ids, str):
                self._span.set_attribute("messaging.message.id", ids)
            else:
                self._span.set_attribute("messaging.batch.message_count", len(ids))
        self._span.end()
