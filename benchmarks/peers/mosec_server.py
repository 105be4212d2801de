"""mosec with one worker process, batches of up to `ROWS` requests."""

import sys
from typing import Any

import msgspec
from classifier import ROWS, TIMEOUT_S, WAIT_MS, arguments, from_environment, texts_of
from mosec import Server, Worker


class Classify(Worker):
    """Runs a batch of requests."""

    def __init__(self) -> None:
        super().__init__()
        self._classify = from_environment()

    def deserialize(self, data: bytes) -> Any:
        """JSON by msgspec, which mosec brings along and which is faster than its own way."""
        return msgspec.json.decode(data)

    def serialize(self, data: Any) -> bytes:
        """The same for replies."""
        return msgspec.json.encode(data)

    def forward(self, data: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Requests to replies, in their order."""
        return self._classify.many([texts_of(request) for request in data])


def main() -> None:
    """Serve until SIGTERM."""
    port = arguments().port
    sys.argv[1:] = ["--address", "127.0.0.1", "--port", str(port), "--timeout", str(1000 * TIMEOUT_S)]  # mosec reads it
    server = Server()
    server.append_worker(Classify, max_batch_size=ROWS, max_wait_time=WAIT_MS, timeout=TIMEOUT_S, route="/classify")
    server.run()


if __name__ == "__main__":
    main()
