"""A real S3 server in this process: moto's, on a free port of the loopback interface."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from moto.server import ThreadedMotoServer


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
        from fsspec.core import url_to_fs

        files, _ = url_to_fs("s3://bundles", skip_instance_cache=True)
        files.mkdir("bundles")
        yield "s3://bundles/reviews"
    finally:
        server.stop()
