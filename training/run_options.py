"""What `run` and `fit` can do besides training once: several seeds, folds, a dry run."""

import argparse
import sys
from pathlib import Path

from lengnuan.training.config import TrainConfig
from lengnuan.training.errors import UsageError


def add_run_options(parser: argparse.ArgumentParser, *, folds: bool) -> None:
    """The options; `folds`: also those of `--folds`."""
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--seeds", type=int, metavar="N", help="train under N seeds; keep the median one")
    instead.add_argument("--dry-run", action="store_true", help="try 20 steps, tell what the run takes; keep nothing")
    if folds:
        instead.add_argument("--folds", type=int, metavar="K", help="judge each row by a training without it, K in all")
        parser.add_argument("--ngrams", action="store_true", help="with --folds: the n-gram referee, no network")


def run_otherwise(arguments: argparse.Namespace, config: TrainConfig) -> bool:
    """Do what those options ask for, if they ask for something; whether they did."""
    if arguments.dry_run:
        _check_alone()
        from lengnuan.training.dry_run import forecast, forecast_table

        sys.stdout.write(forecast_table(forecast(config)))
    elif arguments.seeds is not None:
        _seeds(config, arguments)
    elif getattr(arguments, "folds", None) is not None:
        _folds(config, arguments)
    else:
        return False
    return True


def _check_alone() -> None:
    from lengnuan.training.distributed import world

    if world() > 1:
        raise UsageError(
            "--dry-run: give it without torchrun: the steps are the same, the seconds those of a single process"
        )


def _seeds(config: TrainConfig, arguments: argparse.Namespace) -> None:
    from lengnuan.training.distributed import from_first
    from lengnuan.training.job import Job
    from lengnuan.training.seeds import fit_seeds, run_seeds
    from lengnuan.training.spread import read_seeds, seeds_sentence, seeds_text

    job = Job(config, arguments.output)
    if hasattr(arguments, "folds"):  # `fit`
        fit_seeds(job, arguments.seeds)
    else:
        _say(f"bundle: {run_seeds(job, arguments.seeds)}\n")
    figures = {"seeds": from_first(lambda: read_seeds(arguments.output))}
    _say(f"{seeds_text(figures)}{seeds_sentence(figures)}\n")


def _folds(config: TrainConfig, arguments: argparse.Namespace) -> None:
    from lengnuan.training.folds import folds_table, network_beliefs, ngram_beliefs, run_folds
    from lengnuan.training.job import Job

    folder = f"{'ngram-' if arguments.ngrams else ''}folds-{arguments.folds}"
    predictor = ngram_beliefs if arguments.ngrams else network_beliefs
    figures = run_folds(Job(config, arguments.output), arguments.folds, predictor, folder)
    _say(f"{folds_table(figures)}{Path(arguments.output, folder, 'out-of-fold.jsonl')}\n")


def _say(text: str) -> None:
    """Once, however many processes have come to it."""
    from lengnuan.training.distributed import is_first

    if is_first():
        sys.stdout.write(text)
