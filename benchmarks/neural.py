"""TextCNN and BiLSTM on characters, trained from scratch: the networks most small Chinese classifiers were before BERT.

Both see text as the bundles do (`normalise`, at most 256 units, head and tail of a longer text), and an answer does not
depend on the other texts of a batch.
"""

import json
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from baselines import Floats, dev_accuracy
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

from lengnuan.model.padding import pad
from lengnuan.model.text import normalise
from lengnuan.model.tokenizer import cut
from lengnuan.training.config import DataConfig, TrainConfig
from lengnuan.training.corpus import Corpus
from lengnuan.training.optimise import choose_hardware

PAD, UNKNOWN = 0, 1
MAX_CHARACTERS = 256
MIN_COUNT = 2
BATCH = 64
RATE = 1e-3
EPOCHS = 3


class TextCnn(nn.Module):
    """Kim 2014 (arXiv:1408.5882): windows of several widths over the embeddings, the maximum of each filter, dropout.

    Widths 2 to 5 instead of 3 to 5, because a unit is a character and Chinese words are mostly two of them.
    """

    widths = (2, 3, 4, 5)

    def __init__(self, vocabulary: int, classes: int, embedding: int = 128, filters: int = 100) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=PAD)
        self.windows = nn.ModuleList(nn.Conv1d(embedding, filters, width) for width in self.widths)
        self.dropout = nn.Dropout(0.5)
        self.output = nn.Linear(filters * len(self.widths), classes)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """ids: int64 [B, T], lengths: int64 [B] -> logits: float32 [B, K]."""
        outside = torch.arange(ids.shape[1]) >= lengths[:, None]
        vectors = self.embedding(ids).transpose(1, 2)
        found = []
        for width, window in zip(self.widths, self.windows, strict=True):
            # A window belongs to a text when it begins inside it; what it reads beyond the end is zeros.
            values = F.relu(window(F.pad(vectors, (0, width - 1))))
            found.append(values.masked_fill(outside[:, None], 0.0).amax(dim=2))
        logits: torch.Tensor = self.output(self.dropout(torch.cat(found, dim=1)))
        return logits


class BiLstm(nn.Module):
    """One bidirectional LSTM layer and the maximum over time (Conneau et al. 2017, arXiv:1705.02364, section 3.2)."""

    def __init__(self, vocabulary: int, classes: int, embedding: int = 128, hidden: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=PAD)
        self.onward = nn.LSTM(embedding, hidden, batch_first=True)
        self.reverse = nn.LSTM(embedding, hidden, batch_first=True)
        self.dropout = nn.Dropout(0.5)
        self.output = nn.Linear(2 * hidden, classes)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """ids: int64 [B, T], lengths: int64 [B] -> logits: float32 [B, K]."""
        places = torch.arange(ids.shape[1])
        outside = (places >= lengths[:, None])[:, :, None]
        # Each text turned round by itself, so that its padding stays behind it; a packed sequence does the same, but
        # its gradient takes torch five times as long on a CPU.
        turned = ids.gather(1, (lengths[:, None] - 1 - places).clamp(min=0))
        found = [
            lstm(self.embedding(row))[0].masked_fill(outside, float("-inf")).amax(dim=1)
            for lstm, row in ((self.onward, ids), (self.reverse, turned))
        ]
        logits: torch.Tensor = self.output(self.dropout(torch.cat(found, dim=1)))
        return logits


class Characters:
    """The characters that training texts hold at least twice, as ids."""

    def __init__(self, known: Sequence[str]) -> None:
        self.known = list(known)
        self._ids = {char: index for index, char in enumerate(self.known, start=UNKNOWN + 1)}

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Characters":
        """By falling count."""
        counts = Counter(char for text in texts for char in normalise(text))
        return cls([char for char, count in counts.most_common() if count >= MIN_COUNT])

    def __len__(self) -> int:
        return len(self.known) + UNKNOWN + 1

    def ids(self, text: str) -> list[int]:
        """At least one id."""
        return cut([self._ids.get(char, UNKNOWN) for char in normalise(text)], MAX_CHARACTERS) or [UNKNOWN]


class Neural:
    """A network with its characters.

    Args:
        characters: text to ids.
        network: ids to logits.
    """

    def __init__(self, characters: Characters, network: nn.Module) -> None:
        self.characters, self.network = characters, network

    def probabilities(self, texts: Sequence[str]) -> Floats:
        """See `baselines.Classifier.probabilities`."""
        rows = [self.characters.ids(text) for text in texts]
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        parts = []
        self.network.eval()
        with torch.inference_mode():
            for start in range(0, len(order), BATCH):
                logits = self.network(*_tensors([rows[index] for index in order[start : start + BATCH]]))
                parts.append(logits.double().softmax(dim=1).numpy())
        found = np.concatenate(parts)
        found[order] = found.copy()
        return found


def fit(kind: type[TextCnn] | type[BiLstm], corpus: Corpus, folder: Path) -> dict[str, Any]:
    """Train; keep the weights of the epoch that is best on dev. Returns which one it was."""
    torch.manual_seed(0)
    hardware = choose_hardware(TrainConfig(name="baseline", data=DataConfig(), device="cpu", threads=1))
    characters = Characters.of([row.text for row in corpus.train])
    model = Neural(characters, kind(len(characters), len(corpus.labels.names)))
    rows = [(characters.ids(row.text), row.label) for row in corpus.train]
    steps = EPOCHS * math.ceil(len(rows) / BATCH)
    optimiser = torch.optim.Adam(model.network.parameters(), lr=RATE)
    decay = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: max(0.0, 1.0 - step / steps))
    draw = random.Random(0)
    best, kept = -1.0, 0
    for epoch in range(1, EPOCHS + 1):
        model.network.train()
        for batch in _batches(rows, draw):
            with hardware.autocast():
                logits = model.network(*_tensors([ids for ids, _ in batch]))
            loss = F.cross_entropy(logits.float(), torch.tensor([label for _, label in batch]))
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.network.parameters(), 1.0)
            optimiser.step()
            decay.step()
        found = dev_accuracy(model, corpus.dev)
        print(f"{kind.__name__} epoch {epoch}: dev accuracy {found:.4f}", flush=True)
        if found > best:
            best, kept = found, epoch
            save_file(model.network.state_dict(), folder / "model.safetensors")
    (folder / "characters.json").write_text(json.dumps(characters.known, ensure_ascii=False), encoding="utf-8")
    return {"epoch": kept, "epochs": EPOCHS}


def load(kind: type[TextCnn] | type[BiLstm], folder: Path) -> Neural:
    """Read what `fit` wrote."""
    characters = Characters(json.loads((folder / "characters.json").read_text(encoding="utf-8")))
    weights = load_file(folder / "model.safetensors")
    network = kind(len(characters), len(weights["output.bias"]))
    network.load_state_dict(weights)
    return Neural(characters, network)


def _batches(rows: Sequence[tuple[list[int], int]], draw: random.Random) -> Iterator[list[tuple[list[int], int]]]:
    """All rows once, in chance order; texts of like length together, fifty batches at a time, to pad little."""
    order = list(rows)
    draw.shuffle(order)
    batches = []
    for start in range(0, len(order), 50 * BATCH):
        part = sorted(order[start : start + 50 * BATCH], key=lambda row: len(row[0]))
        batches += [part[at : at + BATCH] for at in range(0, len(part), BATCH)]
    draw.shuffle(batches)
    yield from batches


def _tensors(rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    ids, mask = pad(rows, PAD)
    return torch.from_numpy(ids), torch.from_numpy(mask.sum(axis=1))
