"""A collector of OpenTelemetry traces, as far as HTTP and the protocol's messages go."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """Keeps what is sent to it."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, bytes]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                body = gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
                collector.requests.append((self.path, body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Keep quiet."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    @property
    def spans(self) -> list[Span]:
        messages = [ExportTraceServiceRequest.FromString(body) for _, body in self.requests]
        scopes = [scope for message in messages for sent in message.resource_spans for scope in sent.scope_spans]
        return [span for scope in scopes for span in scope.spans]

    def span(self, name: str) -> Span:
        [found] = [span for span in self.spans if span.name == name]
        return found


@contextmanager
def running_collector() -> Iterator[Collector]:
    """A collector that answers."""
    found = Collector()
    thread = threading.Thread(target=found.server.serve_forever, args=(0.01,))
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


def closed_endpoint() -> str:
    """An address on which nobody listens."""
    gone = Collector()
    gone.server.server_close()
    return gone.endpoint
