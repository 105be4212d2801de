"""A real S3 server in this process: moto's, on a free port of the loopback interface."""

import logging
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from lengnuan.training.s3 import connect


@contextmanager
def s3_server(patch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty bucket, which the usual variables lead to."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    variables = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "test",
                 "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}  # fmt: skip
    for name, value in variables.items():
        patch.setenv(name, value)
    try:
        urllib.request.urlopen(f"http://{host}:{port}/moto-api/reset", data=b"", timeout=10).close()
        files, bucket = connect("s3://bundles")
        files.mkdir(bucket)
        yield "s3://bundles/reviews"
    finally:
        server.stop()


def put(url: str, file: Path) -> None:
    """Copy a file there."""
    files, path = connect(url)
    files.put_file(str(file), path)
