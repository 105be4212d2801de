"""What several test files share: a tokenizer made by hand, a network of a few hundred weights, a bundle around one."""

from pathlib import Path

import pytest
from hypothesis import settings
from promotion_fixtures import write_rows, write_variant
from tiny_bundle import tiny_tokenizer, write_tiny_bundle

from lengnuan.model.tokenizer import Tokenizer

# The same examples in every run and no time limit: a slow or busy machine changes no result.
settings.register_profile("steady", deadline=None, derandomize=True, database=None)
settings.load_profile("steady")


@pytest.fixture
def tokenizer() -> Tokenizer:
    return tiny_tokenizer()


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sealed bundle with a real ONNX graph; read only."""
    return write_tiny_bundle(tmp_path_factory.mktemp("bundle"))


@pytest.fixture
def bundle_copy(tmp_path: Path) -> Path:
    """A sealed bundle that a test may damage."""
    return write_tiny_bundle(tmp_path / "bundle")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three bundles, each of them better than the one before, and rows that show it; read only."""
    root = tmp_path_factory.mktemp("promote")
    write_variant(root / "first", 好看=-3.0, 影=-3.0)
    write_variant(root / "second", 好看=-3.0, 影=3.0)
    write_variant(root / "third", 影=3.0)
    write_rows(root / "rows.tsv")
    return root
