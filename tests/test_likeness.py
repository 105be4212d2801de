from lengnuan.training.examples import Example
from lengnuan.training.likeness import Likeness

LONG = "酒店的位置很方便,服务也周到,早餐种类不算多,不过味道都还可以,下次来这里出差还会住"


def as_rows(*rows: tuple[str, int]) -> list[Example]:
    return [Example(text, label) for text, label in rows]


def test_each_yardstick_finds_more_leaks_than_the_one_before() -> None:
    train = as_rows(("房间很好", 1), ("很 吵", 0), ("不错！", 1), (LONG, 1))
    test = as_rows(("房间很好", 1), ("很吵", 0), ("不错。", 1), (LONG[:-4] + "又来了", 1), ("没见过", 0))
    (found,) = Likeness({"train": train, "test": test}).leaks()
    counts = {level: found[level] for level in ("verbatim", "normalised", "letters", "near")}
    assert counts == {"verbatim": 1, "normalised": 2, "letters": 3, "near": 4}
    assert (found["rows_of"], found["also_in"], found["of"]) == ("test", "train", 5)
    assert found["examples"][0] == "房间很好"


def test_traditional_and_full_width_are_the_same_after_normalisation() -> None:
    (found,) = Likeness({"train": as_rows(("ABC电影好", 1)), "test": as_rows(("ＡＢＣ電影好", 1))}).leaks()
    assert (found["verbatim"], found["normalised"]) == (0, 1)


def test_a_leaked_row_with_another_label_is_counted() -> None:
    train = as_rows(("一般", 1), ("还行", 1))
    (found,) = Likeness({"train": train, "test": as_rows(("一般", 0), ("还行", 1))}).leaks()
    assert (found["normalised"], found["with_another_label"]) == (2, 1)


def test_leaks_are_looked_for_between_each_two_splits() -> None:
    splits = {name: as_rows((name, 0), ("到处都有", 1)) for name in ("train", "dev", "test")}
    found = {(leak["also_in"], leak["rows_of"]): leak["near"] for leak in Likeness(splits).leaks()}
    assert found == {("train", "dev"): 1, ("train", "test"): 1, ("dev", "test"): 1}


def test_seen_rows_are_those_of_the_second_split() -> None:
    likeness = Likeness({"train": as_rows((LONG, 1)), "test": as_rows(("新的", 0), (LONG[2:], 1))})
    assert likeness.seen("train", "test").tolist() == [False, True]


def test_repeats_are_counted_within_a_split_by_each_yardstick() -> None:
    rows = as_rows(("好", 1), ("好", 1), (" 好", 1), ("好！", 1), (LONG, 1), (LONG[3:], 1))
    assert Likeness({"all": rows}).repeats() == {
        "all": {"rows": 6, "verbatim": 1, "normalised": 2, "letters": 3, "near": 4}
    }


def test_a_text_with_two_labels_is_a_conflict_and_its_rows_are_counted() -> None:
    rows = as_rows(("一般", 0), ("一 般", 1), ("一般", 1), ("好", 1), ("好", 1), ("差", 0), ("差！", 1))
    found = Likeness({"all": rows}).conflicts()["all"]
    assert (found["texts"], found["rows"]) == (1, 3)
    assert (found["texts_by_letters"], found["rows_by_letters"]) == (2, 5)
    assert found["examples"][0] == "一般"
