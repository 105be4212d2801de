import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_bundle import LABELS, MAX_TOKENS, tiny_manifest, tiny_tokenizer

from lengnuan.model.bundle import FORMAT_VERSION, GOLDEN, MANIFEST, MODEL, TOKENIZER, Bundle
from lengnuan.model.errors import BundleRefused, ModelError

Change = Callable[[dict[str, Any]], None]


def edit_manifest(bundle: Path, change: Change) -> None:
    content = json.loads((bundle / MANIFEST).read_text(encoding="utf-8"))
    change(content)
    (bundle / MANIFEST).write_text(json.dumps(content), encoding="utf-8")


def refusal(bundle: Path) -> str:
    with pytest.raises(BundleRefused) as refused:
        Bundle.load(bundle)
    return str(refused.value)


def reseal(bundle: Path) -> None:
    Bundle.write(bundle, tiny_manifest(tiny_tokenizer()))


def test_what_was_sealed_is_loaded(tiny_bundle: Path) -> None:
    bundle = Bundle.load(tiny_bundle)
    assert bundle.labels == LABELS
    assert bundle.manifest.max_tokens == MAX_TOKENS
    assert bundle.model_file == tiny_bundle / MODEL
    assert bundle.tokenizer.fingerprint() == bundle.manifest.fingerprint
    assert bundle.golden[0].text == "好"
    assert bundle.golden[0].ids == tuple(bundle.tokenizer.encode("好"))
    assert len(bundle.golden[0].logits) == len(LABELS)


def test_every_file_is_listed_with_its_size(bundle_copy: Path) -> None:
    (bundle_copy / "report").mkdir()
    (bundle_copy / "report/MODEL_CARD.md").write_text("卡片", encoding="utf-8")
    reseal(bundle_copy)
    files = Bundle.load(bundle_copy).manifest.files
    assert sorted(files) == sorted([GOLDEN, MODEL, TOKENIZER, "report/MODEL_CARD.md"])
    assert files["report/MODEL_CARD.md"].size == 6


def test_the_version_changes_with_any_byte(bundle_copy: Path) -> None:
    before = Bundle.load(bundle_copy).version
    reseal(bundle_copy)
    assert Bundle.load(bundle_copy).version == before
    (bundle_copy / MODEL).write_bytes((bundle_copy / MODEL).read_bytes() + b"\0")
    reseal(bundle_copy)
    assert Bundle.load(bundle_copy).version != before


def test_a_bundle_may_be_reached_over_a_link(bundle_copy: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(bundle_copy)
    assert Bundle.load(tmp_path / "current").labels == LABELS


def test_sealing_needs_the_required_files(bundle_copy: Path) -> None:
    (bundle_copy / GOLDEN).unlink()
    with pytest.raises(BundleRefused, match=f"{GOLDEN} must be written before the manifest"):
        reseal(bundle_copy)


def test_sealing_leaves_no_other_file(bundle_copy: Path) -> None:
    assert sorted(file.name for file in bundle_copy.iterdir()) == sorted([GOLDEN, MANIFEST, MODEL, TOKENIZER])


def test_refusals_share_one_base() -> None:
    assert issubclass(BundleRefused, ModelError)


def test_no_manifest(bundle_copy: Path) -> None:
    (bundle_copy / MANIFEST).unlink()
    assert f"{bundle_copy}: no {MANIFEST}" in refusal(bundle_copy)


def test_no_folder(tmp_path: Path) -> None:
    assert f"{tmp_path / 'nowhere'}: no {MANIFEST}" in refusal(tmp_path / "nowhere")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\xff"])
def test_a_manifest_that_is_no_json(bundle_copy: Path, content: bytes) -> None:
    (bundle_copy / MANIFEST).write_bytes(content)
    assert str(bundle_copy / MANIFEST) in refusal(bundle_copy)


@pytest.mark.parametrize("version", [0, FORMAT_VERSION + 1, None, "1"])
def test_another_format_version(bundle_copy: Path, version: object) -> None:
    edit_manifest(bundle_copy, lambda content: content.update(format_version=version))
    expected = f"{bundle_copy / MANIFEST}: format version {version}, this release reads {FORMAT_VERSION}"
    assert refusal(bundle_copy) == expected


def test_a_changed_byte(bundle_copy: Path) -> None:
    data = bytearray((bundle_copy / MODEL).read_bytes())
    sha_before = Bundle.load(bundle_copy).manifest.files[MODEL].sha256
    data[len(data) // 2] ^= 1
    (bundle_copy / MODEL).write_bytes(data)
    message = refusal(bundle_copy)
    assert message.startswith(f"{bundle_copy / MODEL}: sha256 ")
    assert message.endswith(f"the manifest says {sha_before}")


def test_another_size(bundle_copy: Path) -> None:
    size = (bundle_copy / MODEL).stat().st_size
    with (bundle_copy / MODEL).open("ab") as model:
        model.write(b"\0")
    assert refusal(bundle_copy) == f"{bundle_copy / MODEL}: {size + 1} bytes, the manifest says {size}"


def test_a_missing_file(bundle_copy: Path) -> None:
    (bundle_copy / TOKENIZER).unlink()
    assert refusal(bundle_copy) == f"{bundle_copy / TOKENIZER}: listed in the manifest, but No such file or directory"


@pytest.mark.parametrize("name", [GOLDEN, MODEL, TOKENIZER])
def test_a_required_file_that_is_not_listed(bundle_copy: Path, name: str) -> None:
    edit_manifest(bundle_copy, lambda content: content["files"].pop(name))
    assert refusal(bundle_copy) == f"{bundle_copy / MANIFEST}: lists no {name}"


def test_a_path_outside_the_folder(bundle_copy: Path) -> None:
    (bundle_copy.parent / "x").write_bytes(b"")
    edit_manifest(bundle_copy, lambda content: content["files"].update({"../x": content["files"][MODEL]}))
    assert refusal(bundle_copy) == f"{bundle_copy / MANIFEST}: '../x' lies outside the bundle"


def test_an_absolute_path(bundle_copy: Path) -> None:
    edit_manifest(bundle_copy, lambda content: content["files"].update({"/etc/hostname": content["files"][MODEL]}))
    assert "'/etc/hostname' lies outside the bundle" in refusal(bundle_copy)


def test_a_link_that_leads_outside(bundle_copy: Path) -> None:
    outside = bundle_copy.parent / "model.onnx"
    (bundle_copy / MODEL).rename(outside)
    (bundle_copy / MODEL).symlink_to(outside)
    assert f"{MODEL!r} lies outside the bundle" in refusal(bundle_copy)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        pytest.param(["only"], "at least two different names, not ['only']", id="one"),
        pytest.param(["a", "a"], "at least two different names, not ['a', 'a']", id="repeated"),
        pytest.param(["a", " "], "real names, not [' ']", id="blank"),
        pytest.param(["LABEL_0", "LABEL_1"], "real names, not ['LABEL_0', 'LABEL_1']", id="placeholders"),
        pytest.param(["a", "b", "c"], "3 labels, but the graph's output `logits` has width [2]", id="too many"),
        pytest.param("ab", "labels", id="no list"),
    ],
)
def test_bad_labels(bundle_copy: Path, labels: object, message: str) -> None:
    edit_manifest(bundle_copy, lambda content: content.update(labels=labels))
    found = refusal(bundle_copy)
    assert found.startswith(f"{bundle_copy / MANIFEST}: ")
    assert message in found


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0.0),
        ("abstain_threshold", 1.5),
        ("max_tokens", 0),
        ("precision", {"weights": "float8"}),
        ("precision", {"weights": "float32", "reduced": {"bfloat16": {"tolerance": 0.1}}}),
        ("precision", {"weights": "float32", "reduced": {"int4": {}}}),
        ("files", {MODEL: {"sha256": "0", "size": 1}}),
        ("surprise", 1),
    ],
)
def test_a_field_out_of_range_is_named(bundle_copy: Path, field: str, value: object) -> None:
    edit_manifest(bundle_copy, lambda content: content.update({field: value}))
    message = refusal(bundle_copy)
    assert message.startswith(f"{bundle_copy / MANIFEST}: ")
    assert field in message


def test_a_graph_without_logits(bundle_copy: Path) -> None:
    edit_manifest(bundle_copy, lambda content: content.update(outputs=[]))
    assert refusal(bundle_copy) == f"{bundle_copy / MANIFEST}: 2 labels, but the graph's output `logits` has width []"


def test_another_tokenizer_than_the_network_was_trained_with(bundle_copy: Path) -> None:
    trained_with = tiny_tokenizer().fingerprint()
    content = json.loads((bundle_copy / TOKENIZER).read_text(encoding="utf-8"))
    content["scores"][0] -= 0.5
    (bundle_copy / TOKENIZER).write_text(json.dumps(content), encoding="utf-8")
    reseal(bundle_copy)
    message = refusal(bundle_copy)
    assert message.startswith(f"{bundle_copy / TOKENIZER}: text-pipeline fingerprint ")
    assert message.endswith(f"trained with {trained_with}")


def test_a_tokenizer_of_another_text_pipeline(bundle_copy: Path) -> None:
    content = json.loads((bundle_copy / TOKENIZER).read_text(encoding="utf-8"))
    (bundle_copy / TOKENIZER).write_text(json.dumps(content | {"text_version": 99}), encoding="utf-8")
    reseal(bundle_copy)
    assert f"{bundle_copy / TOKENIZER}: made for text pipeline 99" in refusal(bundle_copy)


@pytest.mark.parametrize(
    ("golden", "message"),
    [
        pytest.param("[]", "holds 0 answers", id="none"),
        pytest.param("{", "not a list of text, ids and logits", id="no json"),
        pytest.param('[{"text": "好"}]', "'ids'", id="no ids"),
        pytest.param(
            '[{"text": "好", "ids": [260], "logits": [1.0]}]', "answer 0 has 1 logits for 2 labels", id="width"
        ),
    ],
)
def test_golden_answers_that_check_nothing(bundle_copy: Path, golden: str, message: str) -> None:
    (bundle_copy / GOLDEN).write_text(golden, encoding="utf-8")
    reseal(bundle_copy)
    found = refusal(bundle_copy)
    assert found.startswith(f"{bundle_copy / GOLDEN}: ")
    assert message in found


def test_a_manifest_from_before_bfloat16_was_measured_states_float32_only(bundle_copy: Path) -> None:
    edit_manifest(bundle_copy, lambda content: content["precision"].pop("reduced"))
    precision = Bundle.load(bundle_copy).manifest.precision
    assert precision.states("float32")
    assert not precision.states("bfloat16")
    assert precision.bound("float32") == 1e-4


def test_a_bound_for_bfloat16_is_read_beside_that_of_float32(bundle_copy: Path) -> None:
    stated = {
        **{"tolerance": 0.05, "largest_difference": 0.02, "spread": 0.001, "flipped_share": 0.0, "texts": 100},
        **{"runtime": "openvino 0", "processor": "a CPU"},
    }
    edit_manifest(bundle_copy, lambda content: content["precision"].update(reduced={"bfloat16": stated}))
    precision = Bundle.load(bundle_copy).manifest.precision
    assert precision.states("bfloat16")
    assert (precision.bound("float32"), precision.bound("bfloat16")) == (1e-4, 0.05)
