"""The service behind a real HTTP server, in a thread of the test's process."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from lengnuan.model.engine import Engine
from lengnuan.service.app import create_app
from lengnuan.service.gathering import GatheringProtocol
from lengnuan.service.settings import Settings

PATIENCE_S = 120


@contextmanager
def http_service(bundle: Path, engine: Engine | None = None, **settings: Any) -> Iterator[tuple[str, int]]:
    """Host and port of a ready service, with the parser that `lengnuan-serve` uses."""
    app = create_app(Settings(bundle=bundle, device="cpu", **settings), engine)
    server = uvicorn.Server(uvicorn.Config(app, http=GatheringProtocol, ws="none", log_config=None, lifespan="on"))
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    host, port = listening.getsockname()
    try:
        with httpx.Client(base_url=f"http://{host}:{port}", timeout=PATIENCE_S) as client:
            while client.get("/readyz").status_code != 200:
                assert thread.is_alive()
        yield host, port
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
