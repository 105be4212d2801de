"""The config: one TOML file, checked in full before anything starts."""

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest

from lengnuan.training.config import TrainConfig, load_config
from lengnuan.training.errors import UsageError

SMALLEST = 'name = "toy"\n[data]\n'


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    def write(content: str) -> Path:
        path = tmp_path / "toy.toml"
        path.write_text(content, encoding="utf-8")
        return path

    return write


def test_the_smallest_config_gets_every_default(written: Callable[[str], Path]) -> None:
    config = load_config(written(SMALLEST))
    assert config.name == "toy"
    assert (config.fit.epochs, config.model.layers, config.data.text_column) == (4, 4, "text")


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ('nam = "x"\n' + SMALLEST, "nam"),
        (SMALLEST + "[fit]\nepoch = 3\n", "fit.epoch"),
        (SMALLEST + "[fit.optimiser]\nlr = 0.1\n", "fit.optimiser.lr"),
        (SMALLEST + "[fit]\nepochs = 0\n", "fit.epochs"),
        (SMALLEST + "dev_share = 1.0\n", "data.dev_share"),
        (SMALLEST + '[fit]\nmetric = "acuracy"\n', "fit.metric"),
    ],
)
def test_an_unknown_key_or_a_bad_value_is_named(written: Callable[[str], Path], content: str, key: str) -> None:
    with pytest.raises(UsageError, match=rf"toy\.toml: {key}: "):
        load_config(written(content))


def test_every_problem_is_named_at_once(written: Callable[[str], Path]) -> None:
    with pytest.raises(UsageError, match=r"model\.layer: .*; fit\.epoch: "):
        load_config(written(SMALLEST + "[fit]\nepoch = 3\n[model]\nlayer = 1\n"))


def test_a_shape_no_network_can_have_is_refused(written: Callable[[str], Path]) -> None:
    with pytest.raises(UsageError, match=r"model: .*width 100 is not a multiple of heads 3"):
        load_config(written(SMALLEST + "[model]\nwidth = 100\nheads = 3\n"))


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("fit.epochs=7", lambda c: c.fit.epochs == 7),
        ("fit.optimiser.learning_rate=1e-3", lambda c: c.fit.optimiser.learning_rate == 1e-3),
        ("name=a bare string", lambda c: c.name == "a bare string"),
        ('name="quoted = too"', lambda c: c.name == "quoted = too"),
        ('pretrain.corpus=["a.txt"]', lambda c: c.pretrain.corpus == (Path("a.txt"),)),
        ('data.train={mine = "mine.csv"}', lambda c: c.data.train == {"mine": Path("mine.csv")}),
        ("data.train.more=more.tsv", lambda c: c.data.train == {"first": Path("first.tsv"), "more": Path("more.tsv")}),
        ("model.residual=false", lambda c: c.model.residual is False),
    ],
)
def test_set_takes_toml_or_a_bare_string(
    written: Callable[[str], Path], change: str, value: Callable[[TrainConfig], bool]
) -> None:
    assert value(load_config(written(SMALLEST + 'train = {first = "first.tsv"}\n'), [change]))


def test_pretraining_rows_longer_than_the_network_are_refused(written: Callable[[str], Path]) -> None:
    changes = ['pretrain.corpus=["a.txt"]', "pretrain.max_tokens=200", "model.max_tokens=100"]
    with pytest.raises(UsageError, match=r"pretrain\.max_tokens 200 is more than model\.max_tokens 100"):
        load_config(written(SMALLEST), changes)


def test_later_changes_win(written: Callable[[str], Path]) -> None:
    assert load_config(written(SMALLEST), ["seed=2", "seed=3"]).seed == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("fit.epochs", "write section.key=value"),
        ("=3", "write section.key=value"),
        ("name.first=3", "name is not a section"),
        ("fit.epoch=3", r"fit\.epoch: "),
        ("fit.epochs=many", r"fit\.epochs: "),
    ],
)
def test_a_wrong_set_is_refused(written: Callable[[str], Path], change: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_config(written(SMALLEST), [change])


@pytest.mark.parametrize("content", [b"name = ", "name = '冷'".encode("gb18030")], ids=["no toml", "no utf-8"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"broken\.toml"):
        load_config(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent\.toml"):
        load_config(tmp_path / "absent.toml")


def test_the_resolved_config_is_written_and_reads_back_equal(written: Callable[[str], Path], tmp_path: Path) -> None:
    config = load_config(written(SMALLEST + '[labels]\n"负面" = ["0"]\n"正面" = ["1"]\n'), ["fit.epochs=9"])
    config.write(tmp_path / "config.json")
    content = (tmp_path / "config.json").read_text(encoding="utf-8")
    assert TrainConfig.model_validate_json(content) == config
    assert '"负面"' in content
    assert '"beta2": 0.98' in content, "defaults are written out"


def test_label_order_is_the_order_in_the_file(written: Callable[[str], Path], tmp_path: Path) -> None:
    config = load_config(written(SMALLEST + '[labels]\nz = ["0"]\na = ["1"]\nm = ["2"]\n'))
    config.write(tmp_path / "config.json")
    again = TrainConfig.model_validate_json((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert list(again.labels) == ["z", "a", "m"]


CONFIGS = Path(str(files("lengnuan.training") / "configs"))


@pytest.mark.parametrize("name", sorted(path.name for path in CONFIGS.glob("*.toml") if path.stem != "sentiment"))
def test_the_shipped_configs_are_valid(name: str) -> None:
    config = load_config(CONFIGS / name)
    assert config.name == Path(name).stem
    assert list(config.labels) == ["negative", "positive"]
    assert config.data.train.keys() <= config.sources.keys(), "every source says what it is and its licence"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (['pretrain.corpus=["c.txt"]', "pretrain.max_tokens=300"], "is more than model.max_tokens"),
        (["data.dev_share=0.5", "data.test_share=0.5"], "leave nothing to train on"),
    ],
)
def test_settings_that_undo_each_other_are_refused(tmp_path: Path, changes: list[str], message: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text('name = "x"\n[data.train]\na = "a.tsv"\n', encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        load_config(file, changes)


def test_a_config_with_a_base_holds_only_what_differs(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(
        '[data.train]\na = "a.tsv"\n[fit]\nepochs = 7\npatience = 2\n', encoding="utf-8"
    )
    (tmp_path / "mine.toml").write_text('base = "base.toml"\nname = "mine"\n[fit]\nepochs = 9\n', encoding="utf-8")
    config = load_config(tmp_path / "mine.toml", ["fit.patience=3"])
    assert (config.name, config.fit.epochs, config.fit.patience) == ("mine", 9, 3)
    assert config.data.train == {"a": Path("a.tsv")}


def test_a_base_that_leads_back_or_is_missing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('base = "b.toml"\nname = "a"\n', encoding="utf-8")
    with pytest.raises(UsageError, match=r"b\.toml"):
        load_config(tmp_path / "a.toml")
    (tmp_path / "b.toml").write_text('base = "a.toml"\n', encoding="utf-8")
    with pytest.raises(UsageError, match="its own base"):
        load_config(tmp_path / "a.toml")
