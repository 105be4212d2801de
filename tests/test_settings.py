"""Settings: from flags and environment, checked together and against the model."""

from pathlib import Path

import pytest
from tiny_bundle import MAX_TOKENS, tiny_manifest, tiny_tokenizer

from lengnuan.model.bundle import DEFAULT_BUNDLE
from lengnuan.service.settings import PREFIX, Settings, SettingsRefused, name_of, unknown_variables


def refusal(*argv: str) -> str:
    with pytest.raises(SettingsRefused) as error:
        Settings.from_command_line(list(argv))
    return str(error.value)


def test_defaults_serve_the_embedded_bundle() -> None:
    assert Settings.from_command_line([]).bundle == DEFAULT_BUNDLE


def test_every_setting_is_a_variable_and_a_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = {
        **{"bundle": "/x", "host": "::1", "port": 1, "log_level": "debug", "device": "cpu", "threads": 1, "workers": 2},
        **{"http_processes": 3},
        **{"log_format": "text", "engine": "openvino", "precision": "float32"},
        **{"max_texts": 2, "max_chars": 3, "max_body_bytes": 4, "max_batch_rows": 5, "max_batch_tokens": 6},
        **{"max_padding_share": 0.25, "queue_items": 7, "queue_tokens": 8, "request_timeout_s": 9.0},
        **{"keep_alive_s": 10, "drain_delay_s": 11.0, "shutdown_timeout_s": 12, "stalled_after_s": 13.0},
        **{"keys_file": "/y", "cors_origins": "https://a.example", "otlp_endpoint": "http://b:1"},
        **{"models": "a=/y", "shadow": "a=0.5", "watch_s": 17.0, "admin_token_file": "/z"},
        **{"dead_after_s": 14.0, "max_failed_batches": 15, "cache_size": 16, "predict_flat_list": True},
        **{"queue_wait_s": 17.0, "bulk_run_s": 18.0, "bulk_wait_s": 19.0},
    }
    assert changed.keys() == Settings.model_fields.keys()
    argv = [part for name, value in changed.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    from_flags = Settings.from_command_line(argv)
    for name, value in changed.items():
        monkeypatch.setenv(f"{PREFIX}{name.upper()}", str(value))
    from_environment = Settings.from_command_line([])
    assert from_flags == from_environment
    assert from_flags.model_dump(mode="json") == changed


def test_a_flag_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENGNUAN_PORT", "81")
    assert Settings.from_command_line(["--port", "82"]).port == 82


def test_a_bad_variable_is_named_with_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENGNUAN_PORT", "tcp://10.0.0.1:80")  # what Kubernetes sets for a Service named lengnuan
    message = refusal()
    assert "LENGNUAN_PORT" in message
    assert "tcp://10.0.0.1:80" in message


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--port", "65536"),
        ("--device", "tpu"),
        ("--engine", "torch"),
        ("--precision", "int8"),
        ("--max-batch-rows", "0"),
        ("--max-padding-share", "1.0"),
    ],
)
def test_a_value_out_of_range_is_refused_by_both_names(flag: str, value: str) -> None:
    assert f"{flag} ({PREFIX}{flag[2:].replace('-', '_').upper()})" in refusal(flag, value)


@pytest.mark.parametrize("name", [name for name, field in Settings.model_fields.items() if field.annotation is float])
@pytest.mark.parametrize("value", ["inf", "nan"])
def test_no_time_and_no_share_is_without_end(name: str, value: str) -> None:
    assert name_of(name) in refusal(f"--{name.replace('_', '-')}", value)


def test_an_empty_variable_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENGNUAN_BUNDLE", "")
    assert Settings.from_command_line([]).bundle == DEFAULT_BUNDLE


def test_a_variable_that_is_no_setting_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENGNUAN_PORT", "81")
    monkeypatch.setenv("LENGNUAN_MAX_BATCH_TOKEN", "1")
    assert "LENGNUAN_MAX_BATCH_TOKEN" in unknown_variables()
    assert "LENGNUAN_PORT" not in unknown_variables()


def test_an_unknown_flag_is_a_usage_error() -> None:
    with pytest.raises(SystemExit, match="2"):
        Settings.from_command_line(["--batch-size", "4"])


def test_a_queue_too_short_for_one_request_is_refused() -> None:
    message = refusal("--queue-items", "1023")
    assert f"{name_of('queue_items')} is 1023" in message
    assert f"{name_of('max_texts')} 1024" in message


def test_patience_in_the_wrong_order_is_refused() -> None:
    message = refusal("--dead-after-s", "1", "--stalled-after-s", "2")
    assert f"{name_of('dead_after_s')} is 1, below {name_of('stalled_after_s')} 2" in message


def refusal_by_the_model(**changed: int) -> str:
    with pytest.raises(SettingsRefused) as error:
        Settings(**changed).check_against(tiny_manifest(tiny_tokenizer()))
    return str(error.value)


def test_a_batch_smaller_than_one_text_is_refused_with_both_numbers() -> None:
    message = refusal_by_the_model(max_batch_tokens=MAX_TOKENS - 1)
    assert f"{name_of('max_batch_tokens')} is {MAX_TOKENS - 1}" in message
    assert f"{MAX_TOKENS} tokens" in message
    Settings(max_batch_tokens=MAX_TOKENS).check_against(tiny_manifest(tiny_tokenizer()))


def test_a_queue_with_too_few_tokens_for_one_request_is_refused() -> None:
    message = refusal_by_the_model(max_texts=4, queue_tokens=4 * MAX_TOKENS - 1)
    assert f"{name_of('queue_tokens')} is {4 * MAX_TOKENS - 1}" in message
    assert f"{name_of('max_texts')} 4 " in message


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().bundle = Path("elsewhere")
