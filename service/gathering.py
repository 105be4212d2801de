"""A reply in one piece: uvicorn writes head and body one after the other, and each alone costs a system call."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

# More is sent at once, so that what is streamed isn't held twice.
MOST_BYTES = 1 << 16


class GatheringProtocol(H11Protocol):
    """HTTP/1.1 with h11, whose replies are `Gathering`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection."""
        super().connection_made(Gathering(transport, self.loop))


class Gathering(asyncio.Transport):
    """Sends what is written in one step of the event loop at the end of that step, all together.

    Args:
        transport: what sends.
        loop: whose steps.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._written = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes, to be sent soon."""
        if data and not self._written:
            self._loop.call_soon(self._send)
        self._written += data
        if len(self._written) >= MOST_BYTES:
            self._send()

    def _send(self) -> None:
        if self._written:
            self._transport.write(bytes(self._written))
            self._written.clear()

    def close(self) -> None:
        """Send what is left, and close."""
        self._send()
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether it is closed or about to be."""
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        """Let the client wait."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take more of what it sends."""
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What is known of the connection."""
        return self._transport.get_extra_info(name, default)
