"""`lengnuan-train compare`, `promote`, `rollback` and `store`."""

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lengnuan.training.data_options import add_columns, data_config, share
from lengnuan.training.errors import Held, RejectedCandidate
from lengnuan.training.inputs import data_file

if TYPE_CHECKING:
    from lengnuan.training.promote import Compare

log = logging.getLogger(__name__)

Commands = Any  # argparse keeps the class of what add_subparsers gives to itself


def add_promotion_commands(commands: Commands) -> None:
    """The sub-commands and their options."""
    purposes: dict[str, tuple[Callable[[argparse.ArgumentParser], None], str]] = {
        "compare": (_add_compare, "whether a candidate is to replace the live bundle: exit 0 yes, 10 hold, 11 no"),
        "promote": (_add_promote, "compare with what an alias of a bundle store names, and if it is to be, replace it"),
        "rollback": (_add_rollback, "let an alias of a bundle store name the version that it named before"),
        "store": (_add_store, "the aliases and bundles of a bundle store"),
    }
    for name, (add, purpose) in purposes.items():
        add(commands.add_parser(name, help=purpose, description=purpose))


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("candidate", metavar="CANDIDATE", help="bundle folder, or STORE@ALIAS")
    parser.add_argument("live", metavar="LIVE", help="bundle folder, or STORE@ALIAS")
    _add_comparison(parser)
    parser.set_defaults(command=_compare)


def _add_promote(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("candidate", metavar="CANDIDATE", help="bundle folder, or STORE@ALIAS")
    _add_alias(parser)
    _add_comparison(parser)
    parser.add_argument(
        "--decided-is-done",
        action="store_true",
        help="exit 0 also after HOLD and REJECT, for a scheduler that counts any other code as a failure",
    )
    parser.set_defaults(command=_promote)


def _add_rollback(parser: argparse.ArgumentParser) -> None:
    _add_alias(parser)
    parser.set_defaults(command=_roll_back)


def _add_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", metavar="ROOT", help="folder, or s3://bucket/prefix")
    parser.set_defaults(command=_list)


def _add_alias(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", required=True, metavar="ROOT", help="folder, or s3://bucket/prefix")
    parser.add_argument("--alias", default="champion")
    parser.add_argument("--mlflow", metavar="URI", help="also set the alias in this MLflow model registry")
    parser.add_argument("--mlflow-model", metavar="NAME", help="its registered model; default: the bundle's name")


def _add_comparison(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", type=data_file, nargs="+", required=True, metavar="FILE", help="labelled, never trained on"
    )
    parser.add_argument(
        "--train", type=data_file, nargs="*", default=[], metavar="FILE", help="rows also here are left out"
    )
    parser.add_argument(
        "--behaviour", type=data_file, metavar="FILE", help="table with the columns category, label, text"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="limits, as TOML: docs/promotion.md")
    parser.add_argument("--set", action="append", default=[], metavar="A=B", help="change one limit")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the decision and every figure there")
    add_columns(parser)
    parser.add_argument("--domain-column", default="domain", help="groups rows, where it is there; else the file does")
    parser.add_argument("--max-rejected-share", type=share, default=0.05, help="more rejected lines are refused")
    parser.add_argument("--threads", type=int, default=0)


def _comparison(arguments: argparse.Namespace) -> "Compare":
    """What compares two bundles as the options say: prints the table, writes the file."""
    from lengnuan.model.bundle import Bundle
    from lengnuan.training.compare import Comparison, compare, read_frozen, shared_labels
    from lengnuan.training.config import load_settings
    from lengnuan.training.evaluate import write_json
    from lengnuan.training.verdict import Limits, table

    limits = load_settings(Limits, arguments.config, arguments.set)
    settings = {"domain_column": arguments.domain_column, "max_rejected_share": arguments.max_rejected_share}
    data = data_config(arguments).model_copy(update=settings)

    def run(candidate: Bundle, live: Bundle | None) -> Comparison:
        labels = shared_labels(candidate, live)
        frozen = read_frozen(arguments.data, labels, data, arguments.train, arguments.behaviour)
        found = compare(candidate, live, frozen, limits, arguments.threads)
        sys.stdout.write(table(found.facts))
        if arguments.json:
            write_json(found.facts, arguments.json)
        return found

    return run


def _compare(arguments: argparse.Namespace) -> None:
    from lengnuan.training.promote import bundle_at, refuse

    run = _comparison(arguments)
    with bundle_at(arguments.candidate) as candidate, bundle_at(arguments.live) as live:
        refuse(run(candidate, live))


def _promote(arguments: argparse.Namespace) -> None:
    from lengnuan.training.promote import bundle_at, promote
    from lengnuan.training.store import BundleStore

    run = _comparison(arguments)
    store = BundleStore(arguments.store)
    with bundle_at(arguments.candidate) as candidate:
        try:
            promote(candidate, store, arguments.alias, run)
        except (Held, RejectedCandidate) as decision:
            if not arguments.decided_is_done:
                raise
            log.info("%s; what is live stays", decision)
            return
        _tell(arguments, store.folder_of(candidate.version), candidate.version, candidate.manifest.name)


def _roll_back(arguments: argparse.Namespace) -> None:
    from lengnuan.training.store import BundleStore

    store = BundleStore(arguments.store)
    alias = store.roll_back(arguments.alias)
    sys.stdout.write(f"{arguments.alias} names {alias.bundle} again\n")
    if arguments.mlflow:
        with store.opened(alias.bundle) as bundle:
            _tell(arguments, store.folder_of(alias.bundle), alias.bundle, bundle.manifest.name)


def _tell(arguments: argparse.Namespace, source: str, version: str, name: str) -> None:
    from lengnuan.training.registry import tell_registry

    if arguments.mlflow:
        tell_registry(arguments.mlflow, arguments.mlflow_model or name, arguments.alias, version, source)


def _list(arguments: argparse.Namespace) -> None:
    from lengnuan.training.store import BundleStore

    store = BundleStore(arguments.store)
    for name, alias in store.aliases().items():
        before = f", before {', '.join(alias.history)}" if alias.history else ""
        sys.stdout.write(f"{name} = {alias.bundle} since {alias.changed_at}{before}\n")
    for version, whole in store.versions().items():
        sys.stdout.write(f"bundle {version}{'' if whole else ': not whole, its promotion was not finished'}\n")
