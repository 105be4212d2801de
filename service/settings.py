"""How a service is run: one frozen object, from environment and command line, checked before anything starts."""

import os
import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, CliApp, SettingsConfigDict

from lengnuan.model.bundle import DEFAULT_BUNDLE, Manifest
from lengnuan.model.engine import Device
from lengnuan.model.opening import EngineName, PrecisionName
from lengnuan.service.logs import LogFormat

PREFIX = "LENGNUAN_"
# The model of `bundle` goes by this name in metrics, and by that of its bundle in replies; requests may use both.
DEFAULT_NAME = "default"

_MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class SettingsRefused(Exception):
    """A setting has an impossible value; the message names it, by flag and by environment variable."""


def name_of(setting: str) -> str:
    """Both names under which a setting is given, for instance `--max-texts (LENGNUAN_MAX_TEXTS)`."""
    return f"--{setting.replace('_', '-')} ({PREFIX}{setting.upper()})"


class Settings(BaseSettings):
    """Serve one bundle over HTTP. Every flag is also an environment variable: --max-texts is LENGNUAN_MAX_TEXTS."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        frozen=True,
        allow_inf_nan=False,
        extra="forbid",
        cli_prog_name="lengnuan-serve",
        cli_kebab_case=True,
        cli_hide_none_type=True,
    )

    bundle: Path = Field(DEFAULT_BUNDLE, description="the model: its folder, or STORE@ALIAS")
    models: str = Field("", description="more models, by name: NAME=FOLDER,NAME=STORE@ALIAS")
    shadow: str = Field("", description="NAME=0.1 has one of them answer a tenth of the texts too, to compare")
    watch_s: float = Field(0.0, ge=0.0, description="how often to look for another bundle there; 0 never")
    admin_token_file: Path | None = Field(None, description="what X-Admin-Token must be; without it no /admin")
    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 for all of them")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least urgent line to log")
    log_format: LogFormat = Field("auto", description="text, json, or text on a terminal and JSON elsewhere")
    keys_file: Path | None = Field(None, description="TOML file of API keys (docs/http.md); without it none is needed")
    cors_origins: str = Field(
        "",
        pattern=r"^(|\*|https?://[^/,\s*]+(,https?://[^/,\s*]+)*)$",
        description="pages that browsers let call the service: https://a.example,https://b.example, or *",
    )
    otlp_endpoint: str = Field(
        "",
        pattern=r"^(|https?://[^/@\s]+(/\S*)?)$",
        description="OpenTelemetry collector to send traces to, such as http://otel:4318",
    )
    device: Device = Field("auto", description="cuda means CUDA or an error; auto falls back to the CPU")
    engine: EngineName = Field("auto", description="runtime; auto takes the fastest that is here")
    precision: PrecisionName = Field(
        "auto", description="auto: bfloat16 on a CPU that has it, float16 on CUDA, where the bundle states their bound"
    )
    threads: int = Field(0, ge=0, description="CPU threads of the model; 0 takes what the container may use")
    http_processes: int = Field(
        0, ge=0, le=256, description="processes that answer HTTP, beside one for the models; 0 has one do it all"
    )
    workers: int = Field(
        0, ge=0, description="batches of OpenVINO that run at once, sharing the threads; 0 takes one a thread"
    )

    max_texts: int = Field(1024, ge=1, description="texts in one request")
    max_chars: int = Field(100_000, ge=1, description="characters in one text; far above what the model reads")
    max_body_bytes: int = Field(4 << 20, ge=1, description="bytes in one request body")

    predict_flat_list: bool = Field(False, description="POST /predict takes a flat list of texts as a batch")

    max_batch_rows: int = Field(64, ge=1, description="texts in one run of the model")
    max_batch_tokens: int = Field(1024, ge=1, description="texts times the longest of them, in one run of the model")
    max_padding_share: float = Field(0.5, ge=0.0, lt=1.0, description="part of a run that may be padding")
    queue_items: int = Field(4096, ge=1, description="texts of one priority that may wait")
    queue_tokens: int = Field(1 << 19, ge=1, description="tokens of one priority that may wait")
    queue_wait_s: float = Field(
        5.0, gt=0.0, description="longest wait of those that are there, so far or still to come, for more to come in"
    )
    bulk_run_s: float = Field(0.01, gt=0.0, description="time for a run of bulk texts, which interactive ones wait for")
    bulk_wait_s: float = Field(0.25, gt=0.0, description="time after which bulk texts run although others wait")

    cache_size: int = Field(10_000, ge=0, description="answers kept for texts that come again; 0 keeps none")

    request_timeout_s: float = Field(10.0, gt=0.0, description="longest wait for an answer; requests may ask for less")
    keep_alive_s: int = Field(75, ge=1, description="idle time before a connection is closed; above the proxy's own")
    drain_delay_s: float = Field(5.0, ge=0.0, description="time between SIGTERM and the end of accepting connections")
    shutdown_timeout_s: int = Field(20, ge=1, description="time after that for what is running; the rest gets 503")

    stalled_after_s: float = Field(5.0, gt=0.0, description="a run longer than this makes the service not ready")
    dead_after_s: float = Field(60.0, gt=0.0, description="a run longer than this makes the service not alive")
    max_failed_batches: int = Field(10, ge=1, description="runs failing in a row that make it neither ready nor alive")

    @model_validator(mode="after")
    def _check_models(self) -> Self:
        for setting, read in (("models", self.named_models), ("shadow", self.shadow_share)):
            try:
                read()
            except ValueError as error:
                raise ValueError(f"{name_of(setting)}: {error}") from error
        return self

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.queue_items < self.max_texts:
            raise ValueError(
                f"{name_of('queue_items')} is {self.queue_items}: "
                f"a request of {name_of('max_texts')} {self.max_texts} could never be admitted"
            )
        if self.dead_after_s < self.stalled_after_s:
            raise ValueError(
                f"{name_of('dead_after_s')} is {self.dead_after_s:g}, "
                f"below {name_of('stalled_after_s')} {self.stalled_after_s:g}"
            )
        return self

    def named_models(self) -> dict[str, Path]:
        """Where the models of `models` are, by name; raises `ValueError` for what is no such list."""
        found: dict[str, Path] = {}
        for part in filter(None, self.models.split(",")):
            name, sign, where = (piece.strip() for piece in part.partition("="))
            if not (sign and where and _MODEL_NAME.fullmatch(name)):
                raise ValueError(f"needs NAME=FOLDER or NAME=STORE@ALIAS, not {part!r}; names have a-z, 0-9, . _ and -")
            if name == DEFAULT_NAME or name in found:
                raise ValueError(f"{name} is the name of another model")
            found[name] = Path(where)
        return found

    def shadow_share(self) -> tuple[str, float] | None:
        """Which model answers texts of the default too, and their share; raises `ValueError` for what is neither."""
        if not self.shadow:
            return None
        name, _, share = self.shadow.partition("=")
        if name not in self.named_models():
            raise ValueError(f"{name!r} is no model of {name_of('models')}")
        try:
            number = float(share)
        except ValueError:
            number = 0.0
        if not 0.0 < number <= 1.0:
            raise ValueError(f"needs NAME=SHARE with a share above 0, at most 1, not {share!r}")
        return name, number

    @classmethod
    def from_command_line(cls, argv: list[str]) -> Self:
        """Flags over environment over defaults.

        Raises:
            SettingsRefused: a value is of the wrong type or out of range.
            SystemExit: an unknown flag (2), or `--help` (0).
        """
        try:
            return CliApp.run(cls, cli_args=argv)
        except ValidationError as error:
            raise SettingsRefused("; ".join(map(_explain, error.errors()))) from error

    def check_against(self, manifest: Manifest) -> None:
        """Refuse limits under which this model could not answer every request that the other limits let in.

        Raises:
            SettingsRefused: names the setting and both numbers.
        """
        longest = manifest.max_tokens
        if self.max_batch_tokens < longest:
            raise SettingsRefused(
                f"{name_of('max_batch_tokens')} is {self.max_batch_tokens}, "
                f"but one text of model {manifest.name} has up to {longest} tokens"
            )
        if self.queue_tokens < self.max_texts * longest:
            raise SettingsRefused(
                f"{name_of('queue_tokens')} is {self.queue_tokens}, but one request of {name_of('max_texts')} "
                f"{self.max_texts} has up to {self.max_texts * longest} tokens with model {manifest.name}"
            )


def unknown_variables() -> list[str]:
    """Variables of the environment that look like settings and are none: typing errors, most likely."""
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    return sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known)


def _explain(problem: ErrorDetails) -> str:
    message = problem["msg"].removeprefix("Value error, ")
    if not problem["loc"]:  # of several settings, which the message names
        return message
    return f"{name_of(str(problem['loc'][0]))}: {message}, not {problem['input']!r}"
