"""What several of these tests share: rows with a config, one small run of the whole job, an S3 server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_server import s3_server
from small_runs import SMALL_TOML, sentences, write_tsv

from lengnuan.training import __main__ as command


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows and a config. Read only."""
    folder = tmp_path_factory.mktemp("data")
    write_tsv(folder / "train.tsv", sentences(300))
    (folder / "small.toml").write_text(SMALL_TOML, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of an empty bucket."""
    with pytest.MonkeyPatch.context() as patch, s3_server(patch) as url:
        yield url


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder; its config and data lie beside it. Read only."""
    root = tmp_path_factory.mktemp("job")
    write_tsv(root / "train.tsv", sentences(400))
    (root / "small.toml").write_text(SMALL_TOML, encoding="utf-8")
    arguments = ["--config", str(root / "small.toml"), "--data", str(root), "--output", str(root / "run")]
    assert command.main(["run", *arguments]) == 0
    return root / "run"
