"""A way to a server that can be slow, can be held up, and can be cut."""

import socket
import threading
import time
from contextlib import suppress


class TcpProxy:
    """Passes bytes on, both ways, to a port of this machine, from another of its addresses if one is named."""

    def __init__(self, port: int, source: str = "127.0.0.1") -> None:
        self.delay_seconds = 0.0  # of each piece, in each direction
        self.open = threading.Event()  # while it is not set, nothing is passed on
        self.open.set()
        self._to = port
        self._source = source
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._to), source_address=(self._source, 0))
                except OSError:
                    client.close()
                    continue
                for one, other in ((client, server), (server, client)):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    with self._lock:
                        self._sockets.add(one)
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65_536):
                if self.delay_seconds:
                    time.sleep(self.delay_seconds)
                self.open.wait()
                other.sendall(data)
        self._end(one)
        self._end(other)

    def _end(self, one: socket.socket) -> None:
        with self._lock:
            self._sockets.discard(one)
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()

    def cut(self) -> None:
        """End every connection, whatever is on its way. The next one is let through."""
        with self._lock:
            sockets = [*self._sockets]
        for one in sockets:
            self._end(one)

    def close(self) -> None:
        self._listener.close()
        self.open.set()
        self.cut()
