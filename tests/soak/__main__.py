"""`make soak`: prints what came of it; exit code 0 if the service kept its word, 1 if not."""

import argparse
import sys
import tempfile
from pathlib import Path

from soak.run import Account, Result, soak

# Statuses of the columns; what is left is an error of the caller's.
COLUMNS = ("200", "429", "500", "504")


def main() -> int:
    """Run and tell."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=200_000, help="how many in all")
    parser.add_argument("--clients", type=int, default=32, help="connections, each with one request at a time")
    parser.add_argument("--seed", type=int, default=0, help="of the mix of requests")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = soak(Path(folder), wanted.requests, wanted.clients, wanted.seed)
    sys.stdout.write("\n".join(lines(result, wanted.clients)) + "\n")
    return int(bool(result.faults))


def lines(result: Result, clients: int) -> list[str]:
    """The table and the figures."""
    account, grown = result.account, result.growth
    rate = account.done / result.seconds
    return [
        *table(account),
        f"{account.done} requests of {clients} clients in {result.seconds:.0f} s, {rate:.0f} a second",
        f"{len(account.answered)} answered, each once in the log; {len(account.left)} clients left, "
        f"{result.seen_leaving} of them after the service had read the head",
        f"{result.scrapes} scrapes: texts received = outcomes + in flight at each",
        f"reloads: {', '.join(f'{count} {kind}' for kind, count in sorted(result.reloads.items()))}",
        f"{grown.middle:.0f} MB resident; {grown.growth:+.2f} MB over the second half (at most {grown.bound:.0f})",
        *(result.faults or ["no fault"]),
    ]


def table(account: Account) -> list[str]:
    """Kinds of requests against what became of them."""
    kinds = sorted({kind for kind, _ in account.outcomes}, key=lambda kind: -_sum(account, kind))
    rows = [("", "requests", *COLUMNS, "4xx", "left")]
    for kind in kinds:
        counts = [account.outcomes[kind, status] for status in COLUMNS]
        left = account.outcomes[kind, "left"]
        others = _sum(account, kind) - sum(counts) - left
        rows.append((kind, *map(str, (_sum(account, kind), *counts, others, left))))
    return [f"{row[0]:10}" + "".join(f"{cell:>10}" for cell in row[1:]) for row in rows]


def _sum(account: Account, kind: str) -> int:
    return sum(count for (name, _), count in account.outcomes.items() if name == kind)


if __name__ == "__main__":
    sys.exit(main())
