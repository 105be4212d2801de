"""From and to annotation tools: the forms they write, names of labels, and nothing lost on the way there and back."""

import json
from pathlib import Path
from typing import Any

import pytest

from lengnuan.training.annotations import FORMATS
from lengnuan.training.commands import run
from lengnuan.training.convert import Converted, Fields, read_annotated, write_annotated
from lengnuan.training.errors import DataRefused, UsageError

ROWS = [
    ("房间很好", "正面"),
    ("“引号” \"和' 逗号, 制表\t", "负面"),
    ("两行\n的话", "负面"),
    (" 前后有空格 ", "正面"),
    ("😭[泪]", "中 性"),
    ("None", "1"),
    ("房间很好", "正面"),
]


def read(tmp_path: Path, content: Any, tool: str, name: str = "export.json", **names: str) -> Converted:
    file = tmp_path / name
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return read_annotated(file, tool, Fields(), names)


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("table", "out.jsonl"),
        ("table", "out.csv"),
        ("doccano", "out.jsonl"),
        ("label-studio", "out.json"),
        ("argilla", "out.json"),
        ("argilla", "out.jsonl"),
    ],
)
def test_what_is_written_is_read_back_the_same(tmp_path: Path, form: str, name: str) -> None:
    for fields in (Fields(), Fields("内容", "类别")):
        file = tmp_path / fields.text / name
        write_annotated(ROWS, file, form, fields)
        found = read_annotated(file, form, fields, {})
        assert found.rows == ROWS
        assert (found.account.rejected, found.account.blank) == (0, 0)


def test_folders_are_read_back_as_the_same_set(tmp_path: Path) -> None:
    write_annotated(ROWS, tmp_path / "out", "folders", Fields())
    assert {folder.name for folder in (tmp_path / "out").iterdir()} == {"正面", "负面", "中 性", "1"}
    assert sorted(read_annotated(tmp_path / "out", "folders", Fields(), {}).rows) == sorted(ROWS)


def test_every_form_is_tested_here() -> None:
    assert set(FORMATS) == {"table", "folders", "doccano", "label-studio", "argilla"}


@pytest.mark.parametrize("name", ["out.tsv", "out.txt"])
def test_a_table_that_cannot_hold_the_rows_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="jsonl"):
        write_annotated(ROWS, tmp_path / name, "table", Fields())
    assert not (tmp_path / name).exists()


def test_a_label_that_is_no_folder_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder can be called"):
        write_annotated([("好", "a/b")], tmp_path / "out", "folders", Fields())


def test_texts_in_folders_may_be_in_other_encodings(tmp_path: Path) -> None:
    for name, encoding in (("a.txt", "gb18030"), ("b.txt", "utf-16"), ("c.txt", "utf-8-sig")):
        (tmp_path / "正面").mkdir(exist_ok=True)
        (tmp_path / "正面" / name).write_bytes("房间很好\r\n干净".encode(encoding))
    assert read_annotated(tmp_path, "folders", Fields(), {}).rows == [("房间很好\r\n干净", "正面")] * 3


# doccano


def test_doccano_by_name_in_all_its_spellings(tmp_path: Path) -> None:
    lines = [
        {"id": 1, "text": "好", "label": ["正面"]},
        {"text": "差", "labels": ["负面"]},
        {"text": "又", "label": "正面"},
    ]
    found = read(tmp_path, "\n".join(map(json.dumps, lines)), "doccano", "all.jsonl")
    assert found.rows == [("好", "正面"), ("差", "负面"), ("又", "正面")]


def test_doccano_ids_need_names(tmp_path: Path) -> None:
    lines = [{"text": "好", "annotations": [{"label": 2, "user": 1}]}, {"text": "差", "label": [1]}]
    content = "\n".join(map(json.dumps, lines))
    with pytest.raises(DataRefused):
        read(tmp_path, content, "doccano", "all.jsonl")
    assert read(tmp_path, content, "doccano", "all.jsonl", **{"1": "负面", "2": "正面"}).rows == [
        ("好", "正面"),
        ("差", "负面"),
    ]


def test_items_without_a_label_or_with_several_are_counted(tmp_path: Path) -> None:
    lines = [{"text": "好", "label": ["正面"]}, {"text": "未", "label": []}, {"text": "两", "label": ["正面", "负面"]},
             {"text": "", "label": ["正面"]}, {"label": ["正面"]}, {"text": 5, "label": ["正面"]}]  # fmt: skip
    found = read(tmp_path, "\n".join(map(json.dumps, lines)), "doccano", "all.jsonl")
    account = found.account
    assert (account.accepted, account.blank, account.rejected) == (1, 1, 4)
    assert account.first_rejected[0] == (3, "2 labels that differ")
    assert "no field 'text'" in account.first_rejected[2][1]


# Label Studio


def task(text: str, *choices: list[str], **more: object) -> dict[str, object]:
    results = [{"type": "choices", "from_name": "label", "to_name": "text", "value": {"choices": c}} for c in choices]
    return {"id": 1, "data": {"text": text}, "annotations": [{"result": [result]} for result in results], **more}


def test_label_studio_annotations_and_who_disagrees(tmp_path: Path) -> None:
    cancelled = task("差", ["负面"])
    cancelled["annotations"] = [{"was_cancelled": True, "result": task("", ["正面"])["annotations"][0]["result"]},  # type: ignore[index]
                                *cancelled["annotations"]]  # type: ignore[misc]  # fmt: skip
    tasks = [task("好", ["正面"], ["正面"]), cancelled, task("吵", ["正面"], ["负面"]), task("未")]
    found = read(tmp_path, tasks, "label-studio")
    assert found.rows == [("好", "正面"), ("差", "负面")]
    assert (found.account.blank, found.account.rejected) == (1, 1)


def test_label_studio_picks_the_control_where_there_are_several(tmp_path: Path) -> None:
    two = task("好", ["正面"])
    two["annotations"][0]["result"].append(  # type: ignore[index]
        {"type": "choices", "from_name": "quality", "to_name": "text", "value": {"choices": ["清楚"]}}
    )
    assert read(tmp_path, [two], "label-studio").rows == [("好", "正面")]


def test_label_studio_min_and_escaped_choices(tmp_path: Path) -> None:
    items = [
        {"id": 1, "text": "好", "label": "正面"},
        {"id": 2, "text": "差", "label": '{"choices": ["\\u8d1f\\u9762"]}'},
        {"id": 3, "text": "哭", "label": "[泪]"},
    ]
    assert read(tmp_path, items, "label-studio").rows == [("好", "正面"), ("差", "负面"), ("哭", "[泪]")]


def test_predictions_are_taken_where_nobody_annotated_and_counted(tmp_path: Path) -> None:
    predicted = task("好", predictions=[{"result": task("", ["正面"])["annotations"][0]["result"]}])  # type: ignore[index]
    found = read(tmp_path, [predicted], "label-studio")
    assert (found.rows, found.suggested) == ([("好", "正面")], 1)


# argilla


def test_argilla_of_every_age(tmp_path: Path) -> None:
    items = [
        {"fields": {"text": "新"}, "responses": {"label": [{"value": "正面", "user_id": "x"}]},
         "suggestions": {"label": {"value": "负面"}}},
        {"fields": {"text": "旧"}, "responses": [
            {"status": "discarded", "values": {"label": {"value": "正面"}}},
            {"status": "submitted", "values": {"label": {"value": "负面"}}}]},
        {"text": "更旧", "annotation": "正面"},
        {"inputs": {"text": "也旧"}, "annotation": "负面"},
        {"fields": {"text": "猜"}, "responses": [], "suggestions": [{"question_name": "label", "value": "正面"}]},
        {"fields": {"text": "空"}, "responses": {}, "suggestions": {}},
    ]  # fmt: skip
    found = read(tmp_path, items, "argilla")
    assert found.rows == [("新", "正面"), ("旧", "负面"), ("更旧", "正面"), ("也旧", "负面"), ("猜", "正面")]
    assert (found.suggested, found.account.blank) == (1, 1)


# Unicode, errors, the command


@pytest.mark.parametrize("form", ["table", "doccano", "label-studio", "argilla", "folders"])
def test_lone_surrogates_are_replaced_and_counted(tmp_path: Path, form: str) -> None:
    content = '{"text": "好\\ud83d和\\udc00", "label": ["正\\ud800"]}\n{"text": "\\ud83d\\ude00", "label": ["正"]}\n'
    found = read(tmp_path, content, "doccano", "all.jsonl")
    assert found.rows == [("好\ufffd和\ufffd", "正\ufffd"), ("😀", "正")]
    assert found.surrogates == 3
    assert "3 lone surrogates replaced" in found.facts()
    out = tmp_path / ("out" if form == "folders" else "out.jsonl")
    write_annotated(found.rows, out, form, Fields())
    assert read_annotated(out, form, Fields(), {}).surrogates == 0


@pytest.mark.parametrize("content", ["not json", '[{"text": "好"', '{"text": "好"}\n{'])
def test_what_is_no_json_is_named(tmp_path: Path, content: str) -> None:
    with pytest.raises(UsageError, match=r"export\.json: not JSON"):
        read(tmp_path, content, "doccano")


@pytest.mark.parametrize("item", [5, "text", {"data": "好", "annotations": [3]}, {"annotations": []}])
def test_an_item_of_another_form_is_rejected_by_number(tmp_path: Path, item: object) -> None:
    found = read(tmp_path, [task("好", ["正面"]), item], "label-studio")
    assert found.account.first_rejected[0][0] == 2


def test_the_command_converts_there_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, export, back = tmp_path / "rows.jsonl", tmp_path / "tasks.json", tmp_path / "back.jsonl"
    write_annotated(ROWS, table, "table", Fields())
    assert run(["data", "convert", str(table), "--to", "label-studio", "--output", str(export)]) == 0
    assert run(["data", "convert", str(export), "--from", "label-studio", "--output", str(back)]) == 0
    assert "7 rows, 0 without a label, 0 rejected" in capsys.readouterr().out
    assert back.read_bytes() == table.read_bytes()
    assert run(["data", "convert", str(table), "--to", "argilla", "--output", str(export)]) == 2, (
        "nothing is overwritten"
    )


@pytest.mark.parametrize(
    "content", ['{"1": "负面", "2": "正面"}', '[{"id": 1, "text": "负面"}, {"id": 2, "text": "正面"}]']
)
def test_names_by_id_come_from_a_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "names.json").write_text(content, encoding="utf-8")
    (tmp_path / "all.jsonl").write_text('{"text": "好", "label": [2]}\n', encoding="utf-8")
    arguments = ["data", "convert", str(tmp_path / "all.jsonl"), "--from", "doccano", "--output"]
    assert run([*arguments, str(tmp_path / "out.tsv"), "--label-names", str(tmp_path / "names.json")]) == 0
    assert (tmp_path / "out.tsv").read_text(encoding="utf-8") == "label\ttext\n正面\t好\n"
