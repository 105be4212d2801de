"""Adversarial training: the same batch once more, with the embeddings moved to where it hurts most."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from lengnuan.training.errors import UsageError


class FastGradient:
    """Moves a parameter by `epsilon` along its gradient, and puts it back (Miyato et al. 2017, arXiv:1605.07725).

    There the embedding of each token is moved; here the table, as is usual: one step for all places of a token.

    Raises:
        UsageError: no parameter of the model has `name` in its name.
    """

    def __init__(self, model: nn.Module, name: str, epsilon: float) -> None:
        self._parameters = [p for full, p in model.named_parameters() if name in full and p.requires_grad]
        self._epsilon = epsilon
        if not self._parameters:
            names = ", ".join(full for full, _ in model.named_parameters())
            raise UsageError(f"fit.fgm_parameter = {name!r} is in no parameter's name: choose among {names}")

    @contextmanager
    def moved(self) -> Iterator[None]:
        """Inside, the parameters are moved along the gradient they have now; afterwards as before, bit for bit.

        A gradient that is zero or not finite moves nothing: such a step is skipped anyway.

        Raises:
            UsageError: a parameter has no gradient, so the loss does not depend on it.
        """
        before = [p.detach().clone() for p in self._parameters]
        try:
            for p in self._parameters:
                self._move(p)
            yield
        finally:
            with torch.no_grad():
                for p, value in zip(self._parameters, before, strict=True):
                    p.copy_(value)

    @torch.no_grad()
    def _move(self, p: nn.Parameter) -> None:
        if p.grad is None:
            raise UsageError("fit.fgm_parameter: the loss does not depend on it: choose another")
        norm = float(p.grad.norm())
        if math.isfinite(norm) and norm > 0.0:
            p.add_(p.grad, alpha=self._epsilon / norm)
