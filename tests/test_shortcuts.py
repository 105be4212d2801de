from small_runs import GOOD, THINGS

from lengnuan.training.examples import Example
from lengnuan.training.shortcuts import find_shortcuts


def rows(count: int, tags: tuple[str, str], every: int = 1) -> list[Example]:
    """Texts that say nothing about their label; every n-th of a label ends in its tag."""
    found = []
    for index in range(count):
        label = index % 2
        text = f"第{index}次{THINGS[index // 2 % len(THINGS)]}{GOOD[index // 2 % len(GOOD)]}"
        found.append(Example(text + (tags[label] if index // 2 % every == 0 else ""), label))
    return found


def test_an_emoticon_that_gives_the_label_away_is_found_with_its_label_and_coverage() -> None:
    found = find_shortcuts(rows(600, ("[泪]", "[哈哈]")))
    marks = {token.token: token for token in found.tokens if token.mark}
    assert set(marks) == {"[泪]", "[哈哈]"}
    assert (marks["[泪]"].label, marks["[哈哈]"].label) == (0, 1)
    assert marks["[泪]"].purity == 1.0
    assert 0.4 < marks["[泪]"].coverage < 0.6
    assert (found.share, found.right) == (1.0, 1.0)


def test_signs_and_tags_count_too_and_the_share_is_that_of_the_rows_that_have_one() -> None:
    found = find_shortcuts(rows(2000, ("😭", "【好评】"), every=4))
    assert {token.token for token in found.tokens if token.mark} == {"😭", "【好评】"}
    assert 0.2 < found.share < 0.3


def test_marks_of_both_labels_are_no_shortcut() -> None:
    assert find_shortcuts(rows(600, ("[泪]！", "[泪]！"))).tokens == ()


def test_a_word_is_listed_but_not_counted() -> None:
    found = find_shortcuts(rows(600, ("难吃", "")))
    assert ("难吃", False) in {(token.token, token.mark) for token in found.tokens}
    assert found.share == 0.0


def test_too_few_rows_prove_nothing() -> None:
    assert find_shortcuts(rows(40, ("[泪]", "[哈哈]"))).tokens == ()
    assert find_shortcuts([]).share == 0.0


def test_where_one_class_is_nine_in_ten_its_marks_must_be_purer() -> None:
    """95 of 100 rows with the sign have label 0: no news where 90 of all 100 have it."""
    unequal = [Example(f"第{i}条" + "※" * (i % 2 == 0 or i % 40 == 5), int(i % 10 == 5)) for i in range(4000)]
    assert find_shortcuts(unequal).tokens == ()
    pure = [Example(f"第{i}条" + "※" * (i % 10 == 5), int(i % 10 == 5)) for i in range(4000)]
    assert [token.token for token in find_shortcuts(pure).tokens] == ["※"]


def test_repeats_do_not_prove_a_shortcut_on_the_other_half() -> None:
    """Two hundred copies of one text lie in one half: on the other there is nothing to judge."""
    found = find_shortcuts([Example("一样的话[哼]", 0)] * 200 + rows(400, ("", "")))
    assert found.share == 0.0


def test_taking_the_marks_out_leaves_the_words() -> None:
    examples = rows(600, ("[泪]", "[哈哈]"))
    stripped = find_shortcuts(examples).without(examples)
    assert [e.text.strip() for e in stripped[:2]] == ["第0次房间很好", "第1次房间很好"]
    assert [e.label for e in stripped] == [e.label for e in examples]
    assert not any("[" in e.text for e in stripped)
