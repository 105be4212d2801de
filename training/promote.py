"""`lengnuan-train promote` and `rollback`: which bundle an alias of a store names.

The order makes each moment a good one: the bundle is whole in the store before the alias names it, and the alias
changes in one step. Killed in between, the alias is as it was, and the same command goes on.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lengnuan.model.bundle import Bundle
from lengnuan.model.store import split_alias
from lengnuan.training.compare import Comparison
from lengnuan.training.errors import Held, RejectedCandidate, UsageError
from lengnuan.training.store import Alias, BundleStore

log = logging.getLogger(__name__)

Compare = Callable[[Bundle, Bundle | None], Comparison]


@contextmanager
def bundle_at(where: str) -> Iterator[Bundle]:
    """The bundle in a folder, or the one that `ROOT@ALIAS` names now.

    Raises:
        UsageError: no such alias.
        BundleRefused: no whole bundle.
    """
    named = split_alias(where)
    if named is None:
        yield Bundle.load(Path(where))
        return
    store = BundleStore(named[0])
    alias = store.alias(named[1])
    if alias is None:
        known = ", ".join(store.aliases()) or "none"
        raise UsageError(f"{store.root}: no alias {named[1]} in this store; it has {known}")
    with store.opened(alias.bundle) as bundle:
        yield bundle


def refuse(comparison: Comparison) -> None:
    """Do nothing if the decision is PROMOTE.

    Raises:
        Held: HOLD.
        RejectedCandidate: REJECT.
    """
    kinds = {"HOLD": Held, "REJECT": RejectedCandidate}
    if comparison.decision in kinds:
        reasons = "; ".join(comparison.facts["reasons"])
        raise kinds[comparison.decision](f"{comparison.decision}: {reasons}")


def promote(candidate: Bundle, store: BundleStore, name: str, compare: Compare) -> Alias:
    """Let the alias name the candidate, if the comparison with what it names now says so.

    Args:
        candidate: loaded and checked.
        store: where it goes.
        name: of the alias; it need not be there yet.
        compare: the comparison; its second argument is None if the alias is new.

    Returns:
        What the alias names then.

    Raises:
        Held: the comparison says HOLD.
        RejectedCandidate: it says REJECT.
        StoreBusy: the store gives no answer, or another promotion came first.
    """
    before = store.alias(name)
    if before is not None and before.bundle == candidate.version:
        store.check(candidate.version)
        log.info("%s names %s already", name, candidate.version)
        return before
    if before is None:
        comparison = compare(candidate, None)
    else:
        with store.opened(before.bundle) as live:
            comparison = compare(candidate, live)
    refuse(comparison)
    store.put(candidate, comparison.text())
    after = store.point(name, candidate.version, before)
    log.info("%s: %s names %s now, before %s", store.root, name, after.bundle, before.bundle if before else "nothing")
    return after
