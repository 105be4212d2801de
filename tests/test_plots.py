from lengnuan.training.plots import confusion


def test_chinese_class_names_stay_text_in_the_picture() -> None:
    picture = confusion([[8, 2], [1, 9]], ["投诉", "表扬"])
    assert picture.startswith("<svg")
    assert "投诉" in picture
    assert "表扬" in picture


def test_equal_counts_give_equal_pictures() -> None:
    assert confusion([[1, 0], [0, 1]], ["a", "b"]) == confusion([[1, 0], [0, 1]], ["a", "b"])
