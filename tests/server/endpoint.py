"""An HTTP server on loopback that messages are pushed to, and which remembers what it was asked."""

import base64
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Request:
    """What came."""

    path: str
    headers: dict[str, str]
    body: bytes
    names: list[str]  # of the headers, as often as they came

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def data(self) -> str:
        """The data of a wrapped message."""
        return base64.b64decode(self.json["message"].get("data", "")).decode()


class Endpoint:
    """`answer` decides the status of each request."""

    def __init__(self, answer: Callable[[Request], int] = lambda _: 204) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self.connections = 0
        self._changed = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                outer.connections += 1

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = [(name.lower(), value) for name, value in self.headers.items()]
                request = Request(self.path, dict(headers), body, [name for name, _ in headers])
                status = outer.answer(request)
                outer._remember(request)
                self.send_response(status)
                if status != 204:
                    self.send_header("content-length", "2")
                self.end_headers()
                if status != 204:
                    self.wfile.write(b"ok")

            def log_message(self, *_: object) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None: ...  # the other side has gone

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/push?token=a"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def _remember(self, request: Request) -> None:
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()

    def wait(self, count: int, seconds: float = 20) -> list[Request]:
        """All that came, once there are so many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.requests) >= count, seconds), self.requests
            return list(self.requests)

    def data(self, count: int) -> str:
        return "".join(request.data for request in self.wait(count))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
