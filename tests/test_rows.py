import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengnuan.model.rows import (
    MAX_RECORD_LINES,
    Blank,
    Line,
    Rejected,
    Row,
    Source,
    UnreadableFile,
    has_header,
    read_rows,
)

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, content: str | bytes) -> Path:
        file = tmp_path / name
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    return write_file


def shapes(lines: list[Line]) -> list[tuple[str, int]]:
    return [(type(line).__name__, line.line) for line in lines]


def texts(path: Path, **options: object) -> list[str]:
    return [line.fields["text"] for line in read_rows(Source(path, **options)) if isinstance(line, Row)]


def test_tsv_with_header(write: Write) -> None:
    found = list(read_rows(Source(write("a.tsv", "label\ttext\n1\t好看\n0\t难看\n"))))
    assert found == [Row(2, {"label": "1", "text": "好看"}), Row(3, {"label": "0", "text": "难看"})]


def test_tsv_without_header(write: Write) -> None:
    found = list(read_rows(Source(write("a.tsv", "好看\t1\n"), columns=("text", "label"))))
    assert found == [Row(1, {"text": "好看", "label": "1"})]


def test_tsv_quotes_are_text(write: Write) -> None:
    file = write("a.tsv", 'text\tlabel\n"好看\t1\n难看"\t0\n"一"二\t1\n')
    assert texts(file) == ['"好看', '难看"', '"一"二']


def test_tsv_extra_tabs_belong_to_the_text(write: Write) -> None:
    file = write("a.tsv", "id\ttext\tlabel\n7\t好\t看\t！\t1\n")
    assert list(read_rows(Source(file))) == [Row(2, {"id": "7", "text": "好\t看\t！", "label": "1"})]


def test_tsv_accounts_for_every_line(write: Write) -> None:
    file = write("a.tsv", "text\tlabel\n好看\t1\n\n难看 0\n \t \n很好\t1\t1\n最后\t0")
    found = list(read_rows(Source(file)))
    assert shapes(found) == [("Row", 2), ("Blank", 3), ("Rejected", 4), ("Blank", 5), ("Row", 6), ("Row", 7)]
    assert found[2] == Rejected(4, "1 cells, 2 needed (spaces in place of a tab?)")


@pytest.mark.parametrize("break_", ["\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
def test_only_line_feeds_end_a_line(write: Write, name: str, break_: str) -> None:
    between = "\t" if name == "a.tsv" else ","
    assert texts(write(name, f"text{between}label\n上{break_}下{between}1\n")) == [f"上{break_}下"]


@pytest.mark.parametrize("value", ["None", "NA", "null", "nan", "无", "N/A", "true", "1e5", "#N/A"])
@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.txt"])
def test_words_that_mean_nothing_elsewhere_are_text(write: Write, name: str, value: str) -> None:
    assert texts(write(name, f"{value}\n"), columns=("text",)) == [value]


def test_chinese_headers(write: Write) -> None:
    file = write("a.csv", "文本,标签\n好看,正面\n")
    assert list(read_rows(Source(file, text_column="文本"))) == [Row(2, {"文本": "好看", "标签": "正面"})]


def test_csv_quotes(write: Write) -> None:
    file = write("a.csv", 'text,label\n"一,二",1\n"他说""好""",0\n5"屏幕,1\n"",0\n')
    assert texts(file) == ["一,二", '他说"好"', '5"屏幕', ""]


def test_csv_quoted_header(write: Write) -> None:
    assert texts(write("a.csv", '"text","label"\n好,1\n')) == ["好"]


def test_csv_record_over_several_lines(write: Write) -> None:
    file = write("a.csv", 'text,label\n"一\n\n三",1\n四,0\n')
    found = list(read_rows(Source(file)))
    assert found == [Row(2, {"text": "一\n\n三", "label": "1"}, extra_lines=2), Row(5, {"text": "四", "label": "0"})]


def test_csv_cells_of_any_size(write: Write) -> None:
    long = "好" * 200_000
    assert texts(write("a.csv", f'text,label\n"{long}",1\n')) == [long]


@pytest.mark.parametrize("broken", ['"没有结尾,1', '"一"二,1', '一,"没有结尾', '"', '"一"" ,1', '"好" ,1'], ids=repr)
def test_csv_unbalanced_quote_costs_its_own_line_only(write: Write, broken: str) -> None:
    before = [f"前{i},1" for i in range(3)]
    after = [f'"后{i}",0' if i % 2 else f"后{i},0" for i in range(300)]
    found = list(read_rows(Source(write("a.csv", "\n".join(["text,label", *before, broken, *after])))))
    assert [line.line for line in found if isinstance(line, Rejected)] == [5]
    assert sum(isinstance(line, Row) for line in found) == 303


def test_csv_unclosed_quote_on_every_line(write: Write) -> None:
    found = list(read_rows(Source(write("a.csv", "text,label\n" + '一,"二\n三,四"五\n' * 300))))
    assert all(line.extra_lines == 0 for line in found if not isinstance(line, Blank))
    assert [line.line for line in found] == list(range(2, 602))


@pytest.mark.parametrize(("lines", "kind"), [(MAX_RECORD_LINES, Row), (MAX_RECORD_LINES + 1, Rejected)])
def test_csv_record_may_run_over_so_many_lines(write: Write, lines: int, kind: type) -> None:
    file = write("a.csv", 'text,label\n"一' + "\n" * lines + '",1\n')
    assert isinstance(next(read_rows(Source(file))), kind)


def test_csv_blank_and_short_lines(write: Write) -> None:
    found = list(read_rows(Source(write("a.csv", "text,label\n\n好\n好,1,2\n  \n好,1\n"))))
    assert shapes(found) == [("Blank", 2), ("Rejected", 3), ("Rejected", 4), ("Blank", 5), ("Row", 6)]


def test_csv_an_undecodable_line_inside_a_quoted_cell(write: Write) -> None:
    data = 'text,label\n"一\n'.encode() + b"\xff\n" + '二",1\n好,1\n'.encode()
    found = list(read_rows(Source(write("a.csv", data + "好,1\n".encode() * 5))))
    assert shapes(found)[:4] == [("Rejected", 2), ("Rejected", 3), ("Row", 4), ("Row", 5)]


def test_jsonl(write: Write) -> None:
    rows = ['{"text": "好", "label": 1, "extra": [null]}', "", "[1]", "{", '{"text": NaN}', '{"label": 0}']
    found = list(read_rows(Source(write("a.jsonl", "\n".join(rows)))))
    assert found[0] == Row(1, {"text": "好", "label": 1, "extra": [None]})
    assert shapes(found)[1:] == [("Blank", 2), ("Rejected", 3), ("Rejected", 4), ("Rejected", 5), ("Row", 6)]


def test_jsonl_nested_too_deeply_is_one_rejected_line(write: Write) -> None:
    found = list(read_rows(Source(write("a.ndjson", "[" * 100_000 + '\n{"text": "好"}\n'))))
    assert shapes(found) == [("Rejected", 1), ("Row", 2)]


def test_txt(write: Write) -> None:
    found = list(read_rows(Source(write("a.txt", "好\t看\n\n 难看 \n"))))
    assert found == [Row(1, {"text": "好\t看"}), Blank(2), Row(3, {"text": " 难看 "})]


def test_parquet(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    file = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["好", None, "一\n二"], "label": [1, 0, 1]}), file)
    fields = [{"text": "好", "label": 1}, {"text": None, "label": 0}, {"text": "一\n二", "label": 1}]
    assert list(read_rows(Source(file))) == [Row(i + 1, row) for i, row in enumerate(fields)]
    with pytest.raises(UnreadableFile, match="no column 'review'"):
        list(read_rows(Source(file, text_column="review")))


def hundred_rows(line_break: str = "\n") -> str:
    return line_break.join(["text\tlabel", *(f"第{i}条：很好，体验不错…😀\t{i % 2}" for i in range(100)), ""])


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(hundred_rows().encode("utf-8-sig"), id="utf-8 with a mark"),
        pytest.param(hundred_rows().encode("utf-16"), id="utf-16"),
        pytest.param(b"\xfe\xff" + hundred_rows().encode("utf-16-be"), id="utf-16, big end first"),
        pytest.param(hundred_rows().encode("gb18030"), id="gb18030"),
        pytest.param(hundred_rows("\r\n").encode(), id="crlf"),
        pytest.param(hundred_rows("\r\n").encode("utf-16"), id="crlf in utf-16"),
        pytest.param(hundred_rows().encode().rstrip(b"\n"), id="no last line break"),
    ],
)
def test_every_encoding_gives_the_same_rows(write: Write, data: bytes) -> None:
    plain = list(read_rows(Source(write("plain.tsv", hundred_rows()))))
    assert len(plain) == 100
    assert list(read_rows(Source(write("a.tsv", data)))) == plain
    assert list(read_rows(Source(write("a.tsv.gz", gzip.compress(data))))) == plain
    assert list(read_rows(Source(write("B.TSV.GZ", gzip.compress(data))))) == plain


def test_a_line_that_does_not_decode_is_rejected_by_number(write: Write) -> None:
    data = hundred_rows().encode().replace("第7条".encode(), b"\xe7\xac\xff")
    found = list(read_rows(Source(write("a.tsv", data))))
    assert found[7] == Rejected(9, "not valid utf-8: byte 0xe7 at 0")
    assert sum(isinstance(line, Row) for line in found) == 99


def test_a_byte_order_mark_settles_the_encoding(write: Write) -> None:
    found = list(read_rows(Source(write("a.txt", "\ufeff好\n".encode() + "难看\n".encode("gb18030") * 2))))
    assert shapes(found) == [("Row", 1), ("Rejected", 2), ("Rejected", 3)]


def test_a_line_that_is_not_gb18030_is_rejected_by_number(write: Write) -> None:
    found = list(read_rows(Source(write("a.txt", "好看的电影\n".encode("gb18030") * 3 + b"\xff\xff\n"))))
    assert shapes(found) == [("Row", 1), ("Row", 2), ("Row", 3), ("Rejected", 4)]


@pytest.mark.parametrize("tail", [b"\x3d\xd8\n\x00", b"\x3d"], ids=["half a pair", "half a character"])
def test_a_line_that_is_not_utf16_is_rejected_by_number(write: Write, tail: bytes) -> None:
    data = b"\xff\xfe" + "好\n看\n".encode("utf-16-le") + tail
    assert shapes(list(read_rows(Source(write("a.txt", data))))) == [("Row", 1), ("Row", 2), ("Rejected", 3)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a.tsv", "tsv"), ("a.TSV.GZ", "tsv"), ("2024.01.csv", "csv"), ("a.ndjson", "jsonl"), ("a.tab", "tsv")],
)
def test_the_format_is_read_off_the_name(write: Write, name: str, expected: str) -> None:
    content = json.dumps({"text": "好"}) if expected == "jsonl" else "text\n好\n"
    file = write(name, gzip.compress(content.encode()) if name.lower().endswith(".gz") else content)
    assert texts(file) == ["好"]
    assert has_header(Source(file)) is (expected != "jsonl")


def test_a_given_format_beats_the_name(write: Write) -> None:
    file = write("a.dat", "text\n好\n")
    assert texts(file, file_format="csv") == ["好"]
    assert texts(file, file_format="txt") == ["text", "好"]


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        pytest.param("a.xlsx", "", {}, "can't tell the format", id="unknown ending"),
        pytest.param("a.gz", "", {}, "can't tell the format", id="gz alone"),
        pytest.param("a", "", {}, "can't tell the format", id="no ending"),
        pytest.param("a.tsv", "", {"file_format": "xlsx"}, "format 'xlsx' is none of", id="unknown format"),
        pytest.param("a.tsv", "", {}, "the file is empty", id="no header"),
        pytest.param(
            "a.csv", "review,label\n好,1\n", {}, r"no column 'text'; it has \['review', 'label'\]", id="column"
        ),
        pytest.param("a.tsv", "text\ttext\n", {}, "stands twice", id="column twice"),
        pytest.param("a.tsv", b"te\xff\xffxt\n", {}, "line 1 not valid", id="header does not decode"),
        pytest.param("a.tsv.gz", b"no gzip", {}, "broken gzip", id="not gzip"),
        pytest.param("a.tsv.gz", gzip.compress(b"text\n" * 9)[:-9], {}, "broken gzip", id="gzip cut off"),
        pytest.param("a.parquet", b"PAR1 no", {}, "not a whole Parquet file", id="damaged parquet"),
    ],
)
def test_unreadable_files(write: Write, name: str, content: str | bytes, options: dict[str, str], message: str) -> None:
    file = write(name, content)
    with pytest.raises(UnreadableFile, match=message) as refused:
        list(read_rows(Source(file, **options)))
    assert str(file) in str(refused.value)


@pytest.mark.parametrize("name", ["a.tsv", "a.parquet"])
def test_a_missing_file_is_an_os_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError):
        list(read_rows(Source(tmp_path / name)))


junk = st.lists(
    st.sampled_from([b"\t", b"\n", b"\r\n", b'"', b",", b" ", b"\x00", b"\xff", b"\xe5", "好".encode(), b"a", b"\x85"]),
    max_size=60,
).map(b"".join)


def lines_in(data: bytes) -> int:
    return data.count(b"\n") + (data != b"" and not data.endswith(b"\n"))


@given(junk)
def test_every_line_of_a_tsv_is_one_of_three(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "junk.tsv"
    file.write_bytes(b"text\tlabel\n" + data)
    found = list(read_rows(Source(file)))
    assert [line.line for line in found] == list(range(2, 2 + lines_in(data)))


@given(junk)
def test_every_line_of_a_csv_is_counted_once(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "junk.csv"
    file.write_bytes(b"text,label\n" + data)
    found = list(read_rows(Source(file)))
    assert sum(1 if isinstance(line, Blank) else 1 + line.extra_lines for line in found) == lines_in(data)
