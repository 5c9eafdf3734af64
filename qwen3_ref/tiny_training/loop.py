"""The training loop: AdamW on next-token cross-entropy, in bf16 on a GPU, in fp32 on a CPU."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from qwen3_ref.config import Qwen3Config
from qwen3_ref.model import Qwen3
from qwen3_ref.tiny_training.corpus import Tokens
from qwen3_ref.tiny_training.recipe import Recipe
from qwen3_ref.weights import save_pretrained

IGNORED = -100  # the target of a token that is context only
# Named, so that a run does not depend on which kernel a version of PyTorch prefers.
_ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
_SAVE_EVERY_S = 60.0
_SHARE_OF_TIME = 0.97  # of the time left; the rest is for steps that are slower than those of the warm-up


@dataclass
class TrainingLog:
    """What a run did. `points` are (step, trained loss of that step, learning rate)."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    points: list[tuple[int, float, float]] = field(default_factory=list)


class LossOf(nn.Module):
    """The model with its loss, as one module, so that both are compiled together."""

    def __init__(self, model: Qwen3) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """`tokens`, `targets: [b, t]` int64 → the mean loss over all targets but `IGNORED`, float32."""
        logits = self.model(tokens)
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


class Rows:
    """All rows of a corpus on a device, to be drawn in a seeded random order, again and again.

    Ids are kept as int16 (they are below 4,096), so a corpus of 300M tokens takes 0.9 GB with its mask.
    """

    def __init__(self, tokens: Tokens, length: int, device: torch.device) -> None:
        self._ids = torch.from_numpy(tokens.ids.view("int16")).to(device)
        self._trained = torch.from_numpy(tokens.trained).to(device)
        self._starts = torch.from_numpy(tokens.rows(length)).to(device)
        self._offsets = torch.arange(length + 1, device=device)
        if not len(self._starts):
            raise ValueError(f"the corpus has {len(tokens)} tokens, too few for one row of {length}; add documents.")

    def __len__(self) -> int:
        return len(self._starts)

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """`rows: [b]` → tokens and targets, `[b, length]` int64 each."""
        at = self._starts[rows, None] + self._offsets
        ids, trained = self._ids[at].long(), self._trained[at]
        return ids[:, :-1].contiguous(), torch.where(trained[:, 1:], ids[:, 1:], IGNORED)

    def shuffled(self, batch: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches without end; each pass over the rows has an order of its own."""
        generator = torch.Generator().manual_seed(seed)
        while True:
            order = torch.randperm(len(self), generator=generator)
            if len(order) < batch:
                order = order.repeat(-(-batch // len(order)))
            for rows in order[: len(order) // batch * batch].view(-1, batch):
                yield self.batch(rows.to(self._starts.device, non_blocking=True))


def new_model(config: Qwen3Config, seed: int) -> Qwen3:
    """A model to train: normal matrices, those that write to the residual stream smaller by √(2 · layers)."""
    model = Qwen3(config, attention="sdpa")
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            narrow = name.endswith(("o_proj.weight", "down_proj.weight"))
            scale = config.initializer_range / (math.sqrt(2 * config.num_hidden_layers) if narrow else 1.0)
            nn.init.normal_(parameter, std=scale, generator=generator)
    return model


def save_checkpoint(directory: Path, model: Qwen3) -> None:
    """Writes config.json and a bf16 model.safetensors, each complete or not at all."""
    save_pretrained(directory, copy.deepcopy(model).to(torch.bfloat16))


def train(
    model: Qwen3,
    rows: Rows,
    recipe: Recipe,
    seconds: float,
    brake: float,
    out: Path,
    say: Callable[[str], None],
) -> TrainingLog:
    """Trains `model` in place and saves it to `out` now and then, and at the end.

    Args:
        seconds: wall time that the steps are made to fit, unless `recipe.steps` gives their number.
        brake: seconds after which training stops wherever it is.
    """
    device = model.device
    on_gpu = device.type == "cuda"
    loss_of: nn.Module = LossOf(model.train())
    if on_gpu:
        torch.set_float32_matmul_precision("high")
        loss_of = torch.compile(loss_of, dynamic=False)  # type: ignore[assignment]
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    groups = [
        {"params": decayed, "weight_decay": recipe.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=recipe.peak_rate, betas=(0.9, 0.95), fused=on_gpu)
    batches = rows.shuffled(recipe.batch, recipe.seed)

    def elapsed() -> float:
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    begin = time.perf_counter()
    log, steps, saved_at = TrainingLog(), recipe.steps, 0.0
    first_timed = max(1, recipe.warmup // 3)  # the steps before it compile and warm up
    timed_from = 0.0
    step = 0
    while steps is None or step < steps:
        rate = recipe.rate(step, steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        tokens, targets = next(batches)
        with torch.autocast("cuda", torch.bfloat16, enabled=on_gpu), sdpa_kernel(_ATTENTION):
            loss = loss_of(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        log.tokens += tokens.numel()
        if step == first_timed:
            timed_from = elapsed()
        if steps is None and step == recipe.warmup:
            per_step = (elapsed() - timed_from) / (recipe.warmup - first_timed)
            steps = step + max(1, int(_SHARE_OF_TIME * (seconds - elapsed()) / per_step))
            say(f"{per_step * 1e3:.2f} ms a step: {steps} steps fit into the time")
        if step in (1, 10) or step % max(1, (steps or 6000) // 60) == 0 or step == steps:
            value, now = loss.item(), elapsed()
            if not math.isfinite(value):
                raise FloatingPointError(f"the loss is {value} at step {step}; lower the learning rate.")
            log.points.append((step, round(value, 4), rate))
            say(f"step {step}/{steps or '?'}  loss {value:.4f}  rate {rate:.2e}  {log.tokens / now:,.0f} tokens/s")
            if now > saved_at + _SAVE_EVERY_S:
                save_checkpoint(out, model)
                saved_at = now
            if now > brake and step != steps:
                say(f"stopped at step {step} of {steps or '?'}: the time is over")
                break
    log.steps, log.seconds = step, elapsed()
    save_checkpoint(out, model.eval())
    return log
