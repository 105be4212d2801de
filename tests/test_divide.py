import random
from collections import Counter
from pathlib import Path

import pytest
from small_runs import write_tsv

from lengnuan.training.commands import run
from lengnuan.training.divide import divide
from lengnuan.training.errors import DataRefused
from lengnuan.training.examples import Example
from lengnuan.training.near import seen_keys
from lengnuan.training.splits import text_key


def texts_with_copies(count: int, seed: int = 0) -> list[Example]:
    """Long texts, every second one with an edited copy and a repeat; two in three are of class 1."""
    draw = random.Random(seed)
    found = []
    for number in range(count):
        text = "".join(chr(draw.randrange(0x4E00, 0x9FA5)) for _ in range(40))
        label = int(number % 3 > 0)
        found.append(Example(text, label))
        if number % 2:
            found += [Example(text[:-5] + "换了结尾了", label), Example(text + "！", label)]
    return found


def parts(examples: list[Example], place: list[str]) -> dict[str, list[Example]]:
    return {name: [e for e, at in zip(examples, place, strict=True) if at == name] for name in ("train", "dev", "test")}


def places(examples: list[Example], seed: int) -> dict[str, str]:
    return {e.text: at for e, at in zip(examples, divide(examples, 0.2, 0.2, seed), strict=True)}


def test_repeats_and_near_copies_fall_on_one_side() -> None:
    examples = texts_with_copies(300)
    keys = {
        name: {text_key(e.text) for e in rows} for name, rows in parts(examples, divide(examples, 0.2, 0.2, 1)).items()
    }
    for name in ("dev", "test"):
        others = set().union(*(found for other, found in keys.items() if other != name))
        assert seen_keys(keys[name], others) == set()


def test_every_class_has_its_share_of_each_split() -> None:
    examples = texts_with_copies(600)
    found = parts(examples, divide(examples, 0.1, 0.2, 1))
    total = Counter(example.label for example in examples)
    for name, share in (("dev", 0.1), ("test", 0.2)):
        counts = Counter(example.label for example in found[name])
        for label in total:
            assert abs(counts[label] - share * total[label]) <= 3, "a group has three rows"


def test_the_order_of_the_rows_changes_nothing_and_the_seed_does() -> None:
    examples = texts_with_copies(200)
    mixed = examples[:]
    random.Random(5).shuffle(mixed)
    one, other = (
        {e.text: at for e, at in zip(rows, divide(rows, 0.2, 0.2, 1), strict=True)} for rows in (examples, mixed)
    )
    assert one == other
    assert one != {e.text: at for e, at in zip(examples, divide(examples, 0.2, 0.2, 2), strict=True)}


def test_a_group_too_large_for_a_split_stays_in_train() -> None:
    examples = [Example("一样" + "！" * (n % 3), 1) for n in range(50)] + texts_with_copies(60)
    assert {divide(examples, 0.1, 0.1, seed)[0] for seed in range(10)} == {"train"}


def test_too_few_texts_to_split_are_refused() -> None:
    with pytest.raises(DataRefused, match="dev and test would have none"):
        divide([Example("一样", 0)] * 20, 0.1, 0.1, 1)


def test_the_command_writes_every_row_once_as_it_stands(tmp_path: Path) -> None:
    rows = [f"{n % 2}\t{chr(0x4E00 + 7 * n)}{n}\t \"引号'\t店{n % 3}" for n in range(100)]  # a tab inside the text
    file = tmp_path / "rows.tsv"
    file.write_text("label\ttext\tshop\n" + "\n".join(rows) + "\n", encoding="utf-8")
    assert run(["data", "split", str(file), "--output", str(tmp_path / "out"), "--dev", "0.2"]) == 0
    found = {name: (tmp_path / "out" / f"{name}.tsv").read_text(encoding="utf-8").splitlines() for name in
             ("train", "dev", "test")}  # fmt: skip
    assert {lines[0] for lines in found.values()} == {"label\ttext\tshop"}
    assert sorted(line for lines in found.values() for line in lines[1:]) == sorted(rows)
    assert (len(found["dev"]), len(found["test"])) == (21, 11)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    file = write_tsv(tmp_path / "rows.tsv", [(f"{chr(0x4E00 + n)}{n}", n % 2) for n in range(50)])
    assert run(["data", "split", str(file), "--output", str(tmp_path)]) == 0
    before = (tmp_path / "dev.tsv").read_bytes()
    assert run(["data", "split", str(file), "--output", str(tmp_path), "--seed", "2"]) == 2
    assert (tmp_path / "dev.tsv").read_bytes() == before


def test_shares_that_leave_nothing_are_refused(tmp_path: Path) -> None:
    arguments = [
        "data",
        "split",
        str(tmp_path / "rows.tsv"),
        "--output",
        str(tmp_path),
        "--dev",
        "0.5",
        "--test",
        "0.5",
    ]
    assert run(arguments) == 2
