"""Texts for the servers: as many as one likes, no two equal, made of sentences or read from a folder of reviews."""

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from lengnuan.model.rows import Row, Source, read_rows

MAX_CHARACTERS = 512
MIN_CHARACTERS = 56  # of the joined ones; more than a sentence
SETS = ("hotel", "chnsenticorp")
# Lengths of the hotel and ChnSentiCorp reviews: a median of 80 characters, 5 % above 380.
MEDIAN, SPREAD = 80.0, 0.95

OPENINGS = (
    "这家店的服务真的很好", "等了两个小时饭菜全凉了", "第二次住这个酒店了", "朋友推荐我来试一试",
    "快递三天就到了手里", "书的内容比想象中丰富", "屏幕看久了眼睛不舒服", "前台办理入住特别慢",
    "外卖送来的时候洒了一半", "性价比在同类里算高的", "演员的表演相当自然", "耳机的音质让我很惊喜",
    "客服的态度实在太差",
)  # fmt: skip
BODIES = (
    "房间干净早餐也丰富", "包装破损客服还不理人", "离地铁站走路五分钟", "空调的声音整晚都很吵", "味道和照片里完全两样",
    "电池只能用半天左右", "印刷清楚纸张摸着舒服", "剧情拖沓看得快睡着了", "老板主动送了一份水果", "系统用起来非常流畅",
    "隔音不好听得见走廊说话",
)  # fmt: skip
REMARKS = (
    "价格比别处便宜一点", "孩子看了特别喜欢", "给的分量少得可怜", "发票拖了一周才开", "卫生间的水压不太够",
    "做工细致没有毛边", "说明书写得云里雾里", "周末人多要排长队", "按键手感清脆不松", "停车场免费又宽敞",
    "送的赠品根本没法用", "翻译得很通顺易读", "换货来回折腾三次", "灯光柔和适合看书", "菜单更新得很勤快",
    "散热风扇一直在转", "床单有点发黄的痕迹",
)  # fmt: skip
ENDINGS = (
    "下次还会再来，推荐给大家", "以后不会再买了，非常失望", "总的来说对得起这个价钱", "希望商家能够好好改进",
    "给个四星吧，扣一星给物流", "家里人都说选得不错", "我再也不相信这些评价了",
)  # fmt: skip


def sentence(number: int) -> str:
    """One of 17,017 texts of about 38 characters, and from there on with the round's number behind it.

    The four lists have lengths without a common factor, so consecutive texts share no part until a list is through.
    """
    parts = "，".join(part[number % len(part)] for part in (OPENINGS, BODIES, REMARKS, ENDINGS))
    turn = number // (len(OPENINGS) * len(BODIES) * len(REMARKS) * len(ENDINGS))
    return f"{parts}{turn}" if turn else parts


def sentences() -> Iterator[str]:
    """Short texts without end, no two equal."""
    return map(sentence, itertools.count())


def joined_sentences(seed: int = 0) -> Iterator[str]:
    """Texts of up to `MAX_CHARACTERS` characters without end, lengths as reviews have them, no two equal."""
    chance = np.random.default_rng(seed)
    short = sentences()
    while True:
        length = int(np.clip(chance.lognormal(np.log(MEDIAN), SPREAD), MIN_CHARACTERS, MAX_CHARACTERS))
        text = next(short)
        while len(text) < length:
            text += "。" + next(short)
        yield text[-length:]  # the last sentence whole, since no other text ends with it


def labelled_reviews(folder: Path) -> list[tuple[str, int]]:
    """Texts of `SETS` in a data folder, cut to `MAX_CHARACTERS`, and from which set each is; shuffled, no text twice.

    Raises:
        SystemExit: the folder has none of the sets.
    """
    found: dict[str, int] = {}
    for label, name in enumerate(SETS):
        files = (folder / name / f"{part}.tsv.gz" for part in ("train", "dev", "test"))
        lines = (line for file in files if file.exists() for line in read_rows(Source(file)))
        found |= {line.fields["text"][:MAX_CHARACTERS]: label for line in lines if isinstance(line, Row)}
    if not found:
        raise SystemExit(f"{folder}: no texts of {', '.join(SETS)} there: give a folder with SET/train.tsv.gz")
    labelled = list(found.items())
    random.Random(0).shuffle(labelled)
    return labelled


def reviews(folder: Path) -> Iterator[str]:
    """The texts of `labelled_reviews`; when they are through, again, with a number behind them."""
    texts = [text for text, _ in labelled_reviews(folder)]
    for turn in itertools.count():
        yield from texts if not turn else (f"{text[: MAX_CHARACTERS - 8]}{turn}" for text in texts)


def taker(texts: Iterator[str]) -> Callable[[int], list[str]]:
    """A function that takes so many texts off the iterator."""
    return lambda count: list(itertools.islice(texts, count))
