"""One optimiser step and everything that belongs to it: schedule, clipping, moving average, mixed precision."""

import math
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lengnuan.model.threads import usable_cpus
from lengnuan.training.config import OptimiserConfig, TrainConfig
from lengnuan.training.distributed import is_first, local_rank, local_world, sum_gradients
from lengnuan.training.errors import NotFinite, UsageError

MAX_BAD_STEPS = 5  # steps in a row with a loss or gradient that is not finite


@dataclass(frozen=True)
class Hardware:
    """Where the network runs and in which precision its matrix products are."""

    device: torch.device
    autocast_type: torch.dtype | None  # None: float32 throughout

    def autocast(self) -> AbstractContextManager[object]:
        """Context for the forward pass."""
        return torch.autocast(self.device.type, self.autocast_type, enabled=self.autocast_type is not None)

    def __str__(self) -> str:
        precision = "float32" if self.autocast_type is None else "bfloat16 products, float32 weights"
        return f"{self.device}, {precision}, {torch.get_num_threads()} threads"


def choose_hardware(config: TrainConfig) -> Hardware:
    """Device and precision for a run; sets torch's number of threads.

    Raises:
        UsageError: `device = "cuda"` where there is none, or more processes than CUDA devices.
    """
    torch.set_num_threads(config.threads or max(1, usable_cpus() // local_world()))
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("device = cuda, but torch sees no CUDA device: use cpu or auto")
    cuda = torch.cuda.is_available() and config.device != "cpu"
    if cuda and local_rank() >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise UsageError(f"{local_world()} processes for {found} CUDA devices: start one for each, or set device = cpu")
    fast_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False) if cuda else _cpu_has_bfloat16()
    use = config.precision == "bfloat16" or (config.precision == "auto" and fast_bfloat16)
    device = torch.device("cuda", local_rank()) if cuda else torch.device("cpu")
    return Hardware(device, torch.bfloat16 if use else None)


def _cpu_has_bfloat16() -> bool:
    """AVX512-BF16 or AMX (x86), or the bf16 extension (Arm); without it bfloat16 is emulated and slower."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return False
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags)


def learning_rate_at(step: int, steps: int, config: OptimiserConfig) -> float:
    """Learning rate of 0-based `step` out of `steps`: linear warmup, then decay to zero (closed form, no state)."""
    warmup = max(1, round(config.warmup_share * steps))
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    factor = {"cosine": 0.5 * (1.0 + math.cos(math.pi * done)), "linear": 1.0 - done, "none": 1.0}[config.decay]
    return config.learning_rate * factor


_LAYER = re.compile(r"encoder\.layers\.(\d+)\.")


def _groups(model: nn.Module, config: OptimiserConfig) -> list[dict[str, Any]]:
    """Parameter groups by depth and by whether they decay; the layer next to the head is at the full rate."""
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    depths = {name: int(found.group(1)) for name, _ in model.named_parameters() if (found := _LAYER.match(name))}
    layers = max(depths.values(), default=-1) + 1
    groups: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for name, p in model.named_parameters():
        embedding = name.startswith("encoder.embeddings.")
        steps_down = layers if embedding else layers - 1 - depths.get(name, layers - 1)
        groups.setdefault((steps_down, p.ndim >= 2 and id(p) not in tables), []).append(p)
    return [
        {"params": parameters, "weight_decay": config.weight_decay if decays else 0.0,
         "rate_factor": config.layer_decay**steps_down}
        for (steps_down, decays), parameters in groups.items()
    ]  # fmt: skip


class Optimiser:
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) over a model, with its schedule and moving average.

    Matrices decay; biases, norms and embeddings do not. With `layer_decay` below 1 what is nearer the embeddings learns
    slower (Howard and Ruder 2018, arXiv:1801.06146, section 3.2), so a pretrained start is not torn up.
    `average` holds the exponential moving average of the weights, with the early steps' bias kept small by a decay that
    grows with the step.
    """

    def __init__(self, model: nn.Module, config: OptimiserConfig, steps: int, ema_decay: float = 0.0) -> None:
        self.model = model
        self.config = config
        self.steps = steps
        self.step = 0
        self.bad_steps = 0  # in a row
        self.skipped = 0  # in all
        self._ema_decay = ema_decay
        self._named = dict(model.named_parameters())
        self._adamw = torch.optim.AdamW(
            _groups(model, config), lr=config.learning_rate, betas=(0.9, config.beta2), fused=True
        )
        self.average = {name: p.detach().clone() for name, p in self._named.items()} if ema_decay else {}
        self._loss = 0.0

    def descend(self, loss: Tensor) -> None:
        """Add the gradient of `loss` to what the next `update` follows: one batch, or a part of one."""
        loss.backward()  # type: ignore[no-untyped-call]
        self._loss += float(loss.detach())

    def gather(self) -> None:
        """Make the gradient so far that of all processes, for who needs it before `update`; then `leave_to_first`."""
        self._loss = sum_gradients(list(self._named.values()), self._loss)

    def leave_to_first(self) -> None:
        """Forget a gradient that was gathered, in all processes but the first, so that it is not counted again."""
        if not is_first():
            self._adamw.zero_grad(set_to_none=True)
            self._loss = 0.0

    def update(self) -> tuple[float, float]:
        """Add up over the processes, clip, step; returns the sum of the losses, and the gradient's norm unclipped.

        A step whose loss or gradient is not finite is skipped and counted.

        Raises:
            NotFinite: `MAX_BAD_STEPS` such steps in a row.
        """
        self.gather()
        rate = learning_rate_at(self.step, self.steps, self.config)
        for group in self._adamw.param_groups:
            group["lr"] = rate * group["rate_factor"]
        norm = float(nn.utils.clip_grad_norm_(self._named.values(), self.config.clip_norm))
        loss, self._loss = self._loss, 0.0
        if math.isfinite(norm) and math.isfinite(loss):
            self._adamw.step()
            self.bad_steps = 0
        else:
            self.skipped += 1
            self.bad_steps += 1
            if self.bad_steps >= MAX_BAD_STEPS:
                raise NotFinite(
                    f"step {self.step}: {MAX_BAD_STEPS} steps in a row were not finite: lower learning_rate"
                )
        self._adamw.zero_grad(set_to_none=True)
        self.step += 1
        self._follow()
        return loss, norm

    @torch.no_grad()
    def _follow(self) -> None:
        decay = min(self._ema_decay, (1 + self.step) / (10 + self.step))
        for name, average in self.average.items():
            average.lerp_(self._named[name].detach(), 1.0 - decay)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, the model has the averaged weights; afterwards its own again, bit for bit."""
        if not self.average:
            yield
            return
        own = {name: p.detach().clone() for name, p in self._named.items()}
        self._copy(self.average)
        try:
            yield
        finally:
            self._copy(own)

    @torch.no_grad()
    def _copy(self, weights: dict[str, Tensor]) -> None:
        for name, p in self._named.items():
            p.copy_(weights[name])

    def tensors(self) -> dict[str, Tensor]:
        """Everything a checkpoint needs, by name: weights, moments, moving average."""
        found = {f"model.{name}": p.detach() for name, p in self._named.items()}
        found |= {f"average.{name}": average for name, average in self.average.items()}
        for name, p in self._named.items():
            for key, value in self._adamw.state.get(p, {}).items():
                found[f"adamw.{key}.{name}"] = value
        return found

    def state(self) -> dict[str, int]:
        """Everything else that it needs."""
        return {"step": self.step, "bad_steps": self.bad_steps, "skipped": self.skipped}

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor], state: dict[str, int]) -> None:
        """Continue from what `tensors` and `state` returned."""
        self.step, self.bad_steps, self.skipped = (state[key] for key in ("step", "bad_steps", "skipped"))
        for name, p in self._named.items():
            p.copy_(tensors[f"model.{name}"])
            keys = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"adamw.{key}.{name}" in tensors]
            self._adamw.state[p] = {key: tensors[f"adamw.{key}.{name}"].to(p.device) for key in keys}
        for name, average in self.average.items():
            average.copy_(tensors[f"average.{name}"])
