"""One small run of the whole job, shared by the tests that look at what it leaves."""

from pathlib import Path

import pytest
from small_runs import SMALL_TOML, sentences, write_tsv

from lengnuan.training import __main__ as command


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder; its config and data lie beside it. Read only."""
    root = tmp_path_factory.mktemp("job")
    write_tsv(root / "train.tsv", sentences(400))
    (root / "small.toml").write_text(SMALL_TOML, encoding="utf-8")
    arguments = ["--config", str(root / "small.toml"), "--data", str(root), "--output", str(root / "run")]
    assert command.main(["run", *arguments]) == 0
    return root / "run"
