"""Text to ids: microseconds a text, on one core.

python benchmarks/text.py [--file REVIEWS.tsv]
"""

import argparse
import statistics
import time
from pathlib import Path

from machine import describe

from lengnuan.model.bundle import DEFAULT_BUNDLE, TOKENIZER
from lengnuan.model.rows import Row, Source, read_rows
from lengnuan.model.text import normalise
from lengnuan.model.tokenizer import Tokenizer

ROUNDS = 7
SAMPLE = (
    "这部电影虽然前半段节奏很慢，但结尾非常精彩",
    "服务太差了，等了两个小时，饭菜全凉了",
    "酒店位置很好，離地鐵站很近，房間乾淨，早餐也豐富，前台態度熱情，下次還會來住！！！",
    "Very GOOD！性价比很高，ＡＢＣ１２３，物流也快😊",
)


def main() -> None:
    """Median over rounds of the mean time a text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, help="real texts instead of the four built-in ones")
    path = parser.parse_args().file
    texts = [row.fields["text"] for row in read_rows(Source(path)) if isinstance(row, Row)] if path else SAMPLE * 500
    texts = list(texts)[:5000]
    tokenizer = Tokenizer.from_file(DEFAULT_BUNDLE / TOKENIZER)
    characters = statistics.mean(map(len, texts))
    tokens = statistics.mean(len(tokenizer.encode(text)) for text in texts)
    print(describe())
    print(f"{len(texts)} texts of {characters:.0f} characters, {tokens / characters:.2f} tokens a character")
    for name, step in (("normalise", normalise), ("encode (normalise and segment)", tokenizer.encode)):
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            for text in texts:
                step(text)
            times.append((time.perf_counter() - start) / len(texts))
        print(f"{name:32} {1e6 * statistics.median(times):7.1f} µs a text")


if __name__ == "__main__":
    main()
