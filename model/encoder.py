"""The whole network, read top to bottom: a BERT-style encoder, masked mean pooling, a linear head.

Vaswani et al. 2017 (arXiv:1706.03762) for attention and positions, Devlin et al. 2019 (arXiv:1810.04805) for the
encoder and masked language modelling, Xiong et al. 2020 (arXiv:2002.04745) for where the norms stand.

Letters in shapes, here and everywhere: B batch, T tokens, C width, H heads, D head width (C = H * D), K classes.
`mask` is bool [B, T], True = real token. Padding and neighbours never change an answer: a padded key gets no
attention weight, and padded positions are left out of the mean.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Added to the score of a padded key. exp(-10,000) is exactly 0 in every precision, the number fits in float16, and,
# unlike -inf, a row that is all padding stays finite (it becomes a plain average that nothing reads).
MASKED_SCORE = -10_000.0


@dataclass(frozen=True)
class EncoderConfig:
    """Shape of the network. Stored in the bundle's manifest, so a model can be rebuilt from the bundle alone."""

    vocab_size: int
    max_tokens: int = 256
    width: int = 256
    layers: int = 4
    heads: int = 4
    feed_forward_width: int = 1024
    dropout: float = 0.1
    positions: str = "learned"  # or "sinusoidal", or "none": then the order of the words is invisible
    norm: str = "pre"  # or "post", as in the 2017 paper: needs warmup, or it does not train
    norm_epsilon: float = 1e-5
    activation: str = "gelu"  # exact, with erf; or "relu", as in the 2017 paper and ERNIE 1.0
    residual: bool = True  # False only to see what a deep network does without

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if self.positions not in ("learned", "sinusoidal", "none"):
            raise ValueError(f"positions must be learned, sinusoidal or none, not {self.positions!r}")
        if self.norm not in ("pre", "post"):
            raise ValueError(f"norm must be pre or post, not {self.norm!r}")
        if self.activation not in ("gelu", "relu"):
            raise ValueError(f"activation must be gelu or relu, not {self.activation!r}")


def sinusoids(length: int, width: int) -> Tensor:
    """Fixed position vectors: float32 [length, width], sines in even and cosines in odd columns (2017, section 3.5)."""
    rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    angle = torch.arange(length)[:, None] * rate  # [T, C/2]
    return torch.stack((angle.sin(), angle.cos()), dim=-1).reshape(length, -1)[:, :width]


class Embeddings(nn.Module):
    """A vector for each token plus one for its place."""

    table: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Embedding(config.max_tokens, config.width) if config.positions == "learned" else None
        if config.positions == "sinusoidal":
            table = sinusoids(config.max_tokens, config.width)
        else:
            table = torch.zeros(config.max_tokens, config.width)
        self.register_buffer("table", table, persistent=False)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, token_ids: Tensor) -> Tensor:
        """token_ids: int64 [B, T] -> [B, T, C]."""
        table = self.table if self.positions is None else self.positions.weight
        summed: Tensor = self.tokens(token_ids) + table[: token_ids.shape[1]]
        dropped: Tensor = self.dropout(summed)
        return dropped


class SelfAttention(nn.Module):
    """Every token looks at every real token of its own row, in H independent heads."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.query_key_value = nn.Linear(config.width, 3 * config.width)
        self.output = nn.Linear(config.width, config.width)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """hidden: [B, T, C], mask: bool [B, T] -> [B, T, C]."""
        batch, tokens, width = hidden.shape
        fused = self.query_key_value(hidden).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = fused.permute(2, 0, 3, 1, 4)  # each [B, H, T, D]
        bias = torch.where(mask[:, None, None, :], 0.0, MASKED_SCORE).to(query.dtype)  # [B, 1, 1, T]
        scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-2, -1) + bias  # [B, H, T, T]
        weights = F.dropout(scores.softmax(dim=-1), self.dropout, self.training)
        mixed = weights @ value  # [B, H, T, D]
        joined = mixed.transpose(1, 2).reshape(batch, tokens, width)  # [B, T, C]
        projected: Tensor = self.output(joined)
        return projected


class FeedForward(nn.Module):
    """The same two-layer network at every position."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.expand = nn.Linear(config.width, config.feed_forward_width)
        self.contract = nn.Linear(config.feed_forward_width, config.width)
        self.activation = F.gelu if config.activation == "gelu" else F.relu

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden: [B, T, C] -> [B, T, C]."""
        contracted: Tensor = self.contract(self.activation(self.expand(hidden)))
        return contracted


class EncoderLayer(nn.Module):
    """Attention, then feed-forward, each with a norm and a residual path around it."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, config.norm_epsilon)
        self.attention = SelfAttention(config)
        self.feed_forward_norm = nn.LayerNorm(config.width, config.norm_epsilon)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)
        self.pre_norm = config.norm == "pre"
        self.residual = config.residual

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """hidden: [B, T, C], mask: bool [B, T] -> [B, T, C]."""
        if self.pre_norm:
            hidden = self._add(hidden, self.attention(self.attention_norm(hidden), mask))
            return self._add(hidden, self.feed_forward(self.feed_forward_norm(hidden)))
        normed: Tensor = self.attention_norm(self._add(hidden, self.attention(hidden, mask)))
        result: Tensor = self.feed_forward_norm(self._add(normed, self.feed_forward(normed)))
        return result

    def _add(self, hidden: Tensor, change: Tensor) -> Tensor:
        change = self.dropout(change)
        return hidden + change if self.residual else change


class Encoder(nn.Module):
    """Token ids to one vector a token that knows its whole row."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        # With norms inside the layers the last one stands here; with norms after, this one tames the embeddings.
        self.norm = nn.LayerNorm(config.width, config.norm_epsilon)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.apply(self._initialise)

    def _initialise(self, module: nn.Module) -> None:
        """Normal with deviation 0.02, as in BERT; smaller where a layer adds to the residual path, as in GPT-2."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
        if isinstance(module, EncoderLayer):
            for last in (module.attention.output, module.feed_forward.contract):
                nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * self.config.layers))

    def forward(self, token_ids: Tensor, mask: Tensor) -> Tensor:
        """token_ids: int64 [B, T], mask: bool [B, T] -> [B, T, C]; T is at most `config.max_tokens`."""
        hidden: Tensor = self.embeddings(token_ids)
        if self.config.norm == "post":
            hidden = self.norm(hidden)
        for layer in self.layers:
            hidden = layer(hidden, mask)
        if self.config.norm == "pre":
            hidden = self.norm(hidden)
        return hidden


def mean_pool(hidden: Tensor, mask: Tensor) -> Tensor:
    """Mean over the real tokens of each row.

    Args:
        hidden: [B, T, C].
        mask: bool [B, T], True = real token.

    Returns:
        [B, C]. A row that is all padding gives zeros: the count is never below 1.
    """
    weight = mask.unsqueeze(-1).to(hidden.dtype)  # [B, T, 1]
    return (hidden * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1.0)


class Classifier(nn.Module):
    """Encoder, mean pooling and a linear head with K outputs."""

    def __init__(self, config: EncoderConfig, classes: int) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(config.width, classes)

    def forward(self, token_ids: Tensor, mask: Tensor) -> Tensor:
        """token_ids: int64 [B, T], mask: bool [B, T] -> logits [B, K]."""
        return self.answer(self.pool(token_ids, mask))

    def pool(self, token_ids: Tensor, mask: Tensor) -> Tensor:
        """What the encoder makes of each row: token_ids int64 [B, T], mask bool [B, T] -> [B, C]."""
        return mean_pool(self.encoder(token_ids, mask), mask)

    def answer(self, pooled: Tensor) -> Tensor:
        """Logits from it: [B, C] -> [B, K]; in training each call draws another dropout."""
        logits: Tensor = self.head(self.dropout(pooled))
        return logits


class MaskedLanguageModel(nn.Module):
    """Guess hidden tokens from the rest: how the encoder learns the language before it sees a label.

    The output matrix is the embedding table (tied weights, Press and Wolf 2017, arXiv:1608.05859), cut to the ids
    that the corpus holds, so that the softmax does not dominate the step.
    """

    candidates: Tensor

    def __init__(self, config: EncoderConfig, candidates: Tensor) -> None:
        """`candidates`: int64 [V], the ids that may be an answer, sorted."""
        super().__init__()
        self.encoder = Encoder(config)
        self.transform = nn.Linear(config.width, config.width)
        self.norm = nn.LayerNorm(config.width)
        self.bias = nn.Parameter(torch.zeros(len(candidates)))
        self.register_buffer("candidates", candidates, persistent=False)

    def forward(self, token_ids: Tensor, mask: Tensor, hidden_at: Tensor) -> Tensor:
        """Scores for the hidden tokens only.

        Args:
            token_ids: int64 [B, T], with the hidden tokens replaced.
            mask: bool [B, T], True = real token.
            hidden_at: bool [B, T], True where a token is to be guessed; N of them.

        Returns:
            logits [N, V], column j for the id `candidates[j]`.
        """
        guesses = self.encoder(token_ids, mask)[hidden_at]  # [N, C]
        guesses = self.norm(F.gelu(self.transform(guesses)))
        table = self.encoder.embeddings.tokens.weight[self.candidates]  # [V, C]
        return F.linear(guesses, table, self.bias)
