"""A server that does nothing: it answers every request with the same bytes. What it gets is what the clients can do."""

import argparse
import asyncio

import uvloop

BODY = b'{"data":[{"label":"positive","probs":[0.5,0.5]}]}'
REPLY = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(BODY), BODY)


class Nothing(asyncio.Protocol):
    """A small request arrives in one piece, so every piece is one."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what to answer through."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer."""
        self._transport.write(REPLY)


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Nothing, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--bundle", help="as the other servers have it; not read")
    uvloop.run(_serve(parser.parse_args().port))
