"""The gate: what was measured about the data against the limits of the config."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

from lengnuan.training.config import Concern, GateConfig
from lengnuan.training.errors import DataRefused
from lengnuan.training.examples import Example

log = logging.getLogger(__name__)

MIN_ROWS = 100  # a split of fewer rows may differ from another by chance: its label shift isn't judged

_ADVICE = {
    "leaked": "set data.drop_leaked, or split again with `data split`, which keeps near copies together",
    "conflicting": "decide which label is right",
    "duplicate": "drop the copies, or say why they are there",
    "shortcut": "take the marks out of the texts: a model would learn them in place of the language",
    "label_shift": "draw train, dev and test from the same rows, or weigh what the scores mean",
}


@dataclass(frozen=True)
class Measured:
    """One share that has a limit, and the rows where it is worst."""

    concern: Concern
    share: float
    where: str


@dataclass(frozen=True)
class Judged:
    """A measured share beside its limit."""

    concern: Concern
    share: float
    where: str
    limit: float
    acknowledged: bool

    @property
    def past(self) -> bool:
        """True when it is over the limit, acknowledged or not."""
        return self.share > self.limit

    @property
    def refused(self) -> bool:
        """True when training must not go on."""
        return self.past and not self.acknowledged

    def __str__(self) -> str:
        state = "within" if not self.past else "PAST" if not self.acknowledged else "past, acknowledged,"
        return f"{self.concern}: {self.share:.2%} ({self.where}), {state} the limit of {self.limit:.2%}"


def judge(measured: Iterable[Measured], gate: GateConfig) -> list[Judged]:
    """The worst share of each concern against its limit, in the order of the config."""
    worst: dict[str, Measured] = {}
    for found in measured:
        if found.concern not in worst or found.share > worst[found.concern].share:
            worst[found.concern] = found
    ordered = [worst[concern] for concern in get_args(Concern) if concern in worst]
    return [
        Judged(found.concern, found.share, found.where, gate.limit(found.concern), found.concern in gate.acknowledged)
        for found in ordered
    ]


def gate_facts(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """For a report."""
    return [asdict(found) | {"past": found.past} for found in judged]


def refuse(judged: Sequence[Judged]) -> None:
    """Say what is past its limit.

    Raises:
        DataRefused: something is, and the config doesn't acknowledge it.
    """
    for found in judged:
        (log.warning if found.past else log.info)("data gate: %s", found)
    refused = [found for found in judged if found.refused]
    if refused:
        names = ", ".join(f'"{found.concern}"' for found in refused)
        advice = "".join(f"\n  {found}: {_ADVICE[found.concern]}" for found in refused)
        raise DataRefused(f"the data is past its limits:{advice}\nor write acknowledged = [{names}] under [gate]")


def label_shift(first: Iterable[Example], second: Iterable[Example]) -> float | None:
    """Total variation distance between the labels of two splits, in [0, 1]; None when one has few rows."""
    shares = [_label_shares(rows) for rows in (first, second)]
    if None in shares:
        return None
    one, other = (share or {} for share in shares)
    return sum(abs(one.get(label, 0.0) - other.get(label, 0.0)) for label in one.keys() | other.keys()) / 2


def _label_shares(rows: Iterable[Example]) -> Mapping[int, float] | None:
    counts: dict[int, int] = {}
    for example in rows:
        counts[example.label] = counts.get(example.label, 0) + 1
    total = sum(counts.values())
    return {label: count / total for label, count in counts.items()} if total >= MIN_ROWS else None
