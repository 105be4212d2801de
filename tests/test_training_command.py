"""`lengnuan-train` where the training packages are missing."""

import sys

import pytest

from lengnuan.training import __main__ as command


def test_without_the_train_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "lengnuan.training.commands", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith(("lengnuan.training.", "lengnuan.model.encoder"))]:
        if name != "lengnuan.training.__main__":
            monkeypatch.delitem(sys.modules, name)
    assert command.main(["data", "list"]) == 2
    assert "pip install 'lengnuan[train]'" in capsys.readouterr().err
