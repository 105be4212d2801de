"""Accuracy of the embedded bundle on every test set, beside the n-gram referee fitted on the same training rows.

python benchmarks/quality.py                 what the bundle's report says
python benchmarks/quality.py --data DATA     measured again; DATA as in docs/default-bundle.md (two minutes)
"""

import argparse
import json
import logging
from pathlib import Path
from typing import Any

from machine import describe

from lengnuan.model.bundle import DEFAULT_BUNDLE, Bundle
from lengnuan.model.engine import OnnxEngine
from lengnuan.training.config import load_config
from lengnuan.training.corpus import Corpus, read_corpus
from lengnuan.training.data import read_examples, source_of
from lengnuan.training.evaluate import logits_of, mean_scores, scored, table
from lengnuan.training.referee import Referee
from lengnuan.training.scores import Scored, margin, summary

CONFIG = Path(__file__).parents[1] / "training" / "configs" / "default.toml"
# Test sets outside the config: nothing like them was trained on, and their labels come from emoticons in the texts.
EXTRA = {"weibo_senti_100k": Path("weibo_senti_100k_sample/test.tsv.gz")}


def main() -> None:
    """Print one table, the extra sets below it, and the margin."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    data = parser.parse_args().data
    bundle = Bundle.load(DEFAULT_BUNDLE)
    print(describe())
    print(f"bundle {bundle.manifest.name} {bundle.version}")
    if data is None:
        metrics = json.loads((DEFAULT_BUNDLE / "report" / "metrics.json").read_text(encoding="utf-8"))
        show(metrics["test"], metrics["referee"]["test"], metrics["margin_over_referee"])
        return
    logging.disable(logging.INFO)
    config = load_config(CONFIG, [f"data.root={json.dumps(str(data))}"])
    corpus = read_corpus(config)
    referee = Referee(corpus)
    engine = OnnxEngine(bundle.model_file, "cpu")
    extra = {name: read_examples(source_of(path, config.data), corpus.labels, config.data, name)[0]
             for name, path in EXTRA.items() if (data / path).exists()}  # fmt: skip
    for rows in (corpus.test, extra):
        model = {name: scored(part, logits_of(bundle, engine, part), bundle.manifest.temperature, set())
                 for name, part in rows.items()}  # fmt: skip
        grams = {name: Scored(model[name].labels, referee.probabilities(part), model[name].domains, model[name].leaked)
                 for name, part in rows.items()}  # fmt: skip
        found = summaries(model, corpus)
        show({"files": found, "mean": mean_scores(found)}, summaries(grams, corpus), margin(model, grams))


def summaries(parts: dict[str, Scored], corpus: Corpus) -> dict[str, Any]:
    """Figures by source."""
    return {name: summary(part, corpus.labels.names) for name, part in parts.items()}


def show(test: dict[str, Any], referee: dict[str, Any], found: dict[str, Any]) -> None:
    """A table and its margin."""
    print(table(test, referee), end="")
    low, high = (100 * bound for bound in found["mean"]["interval"])
    print(f"margin over n-grams {100 * found['mean']['margin']:+.2f} points (95 % interval {low:+.2f} to {high:+.2f})")


if __name__ == "__main__":
    main()
