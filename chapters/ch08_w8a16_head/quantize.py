"""Int8 weights with a scale for each group of columns, and an output head made of them, on a device or in a file.

Source: Dettmers et al., LLM.int8(), 2022, section 2: absmax quantisation, here of groups of a row.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from qwen3_ref.quantized import dequantize_w8
from qwen_cuda.operators import w8a16_argmax, w8a16_linear

GROUPS = (32, 64, 128)  # columns that the kernels know to share a scale, beside whole rows
LARGEST = 127  # of a quantised weight; −128 is not used, so that the range is symmetric
ROWS_AT_ONCE = 8192  # a head of 151,936 rows needs no second copy of itself for what is computed on the way
FORMAT, VERSION = "qwen_cuda.w8_head", "1"


# --8<-- [start:quantize]
def quantize_w8(weight: Tensor, group: int | None = 128) -> tuple[Tensor, Tensor]:
    """`weight: [n, k]` → int8 `[n, k]` and float32 scales `[n, k / group]`.

    The scale of a group is `max |w| / 127`; a weight becomes the nearest multiple of it, of two
    equally near ones the even one. A group of zeros has scale 0 and stays zero.

    Args:
        weight: float32, float16 or bfloat16. It stays as it is, also where an embedding shares it.
        group: 32, 64, 128, or None for a scale of each whole row.
    Raises:
        ValueError: the weight is no such matrix, `group` is another number or does not divide k, or
            a value is NaN or infinite; the sentence says which.
    """
    size = _group_size(weight, group)
    qweight = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    groups = weight.shape[1] // size
    scales = torch.empty((weight.shape[0], groups), dtype=torch.float32, device=weight.device)
    for first in range(0, weight.shape[0], ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        values = weight.detach()[rows].float().unflatten(1, (-1, size))
        largest = values.abs().amax(-1)
        _check_finite(largest, first)
        scale = largest / LARGEST
        # 0/0 where all are zero. A subnormal scale is coarse: the quotient may leave the range.
        quotient = values / torch.where(scale > 0, scale, 1.0)[:, :, None]
        integers = quotient.round().clamp(-LARGEST, LARGEST)
        qweight[rows] = integers.to(torch.int8).flatten(1)
        scales[rows] = scale
    return qweight, scales


# --8<-- [end:quantize]


def _group_size(weight: Tensor, group: int | None) -> int:
    if weight.dim() != 2 or weight.numel() == 0:
        raise ValueError(f"weight has shape {list(weight.shape)}; it must be a matrix [n, k] with elements.")
    if weight.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(f"weight has dtype {weight.dtype}; it must be float32, float16 or bfloat16.")
    k = weight.shape[1]
    if group is None:
        return k
    if group not in GROUPS or k % group:
        raise ValueError(
            f"group is {group}; it must be 32, 64 or 128 and divide the {k} columns of weight, or None for a scale of "
            "each whole row."
        )
    return group


def _check_finite(largest: Tensor, first: int) -> None:
    """`largest: [rows, groups]`, of rows from `first` on: NaN and infinity pass through a maximum."""
    bad = ~largest.isfinite()
    if bad.any():
        row, at = (int(i) for i in bad.nonzero()[0])
        raise ValueError(
            f"weight holds NaN or infinity in row {first + row}, group {at}, which no scale can represent; "
            "mend the checkpoint."
        )


class HeadFileError(ValueError):
    """A file that holds no head that this version can read."""


@dataclass(frozen=True)
class W8Head:
    """The output head of a model as int8. Greedy decoding needs `argmax`, sampling `logits`.

    Attributes:
        qweight: int8 `[n, k]`.
        scales: float32 `[n, k / group]`.
    """

    qweight: Tensor
    scales: Tensor

    @classmethod
    def of(cls, weight: Tensor, group: int | None = 128) -> W8Head:
        """The head for `weight: [n, k]`. Where the model's embedding is tied to it, that goes on as it is.

        Raises:
            ValueError: as `quantize_w8`.
        """
        return cls(*quantize_w8(weight, group))

    @property
    def group(self) -> int:
        """Columns that share a scale."""
        return self.qweight.shape[1] // self.scales.shape[1]

    @property
    def nbytes(self) -> int:
        """What each token reads."""
        return self.qweight.nbytes + self.scales.nbytes

    def to(self, device: torch.device | str) -> W8Head:
        return W8Head(self.qweight.to(device), self.scales.to(device))

    def dequantized(self) -> Tensor:
        """The weight that the head stands for: float32 `[n, k]`."""
        return dequantize_w8(self.qweight, self.scales)

    def logits(self, x: Tensor, norm_weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
        """`x: [b ≤ 8, k]`, normed first if a weight is given → float32 `[b, n]`."""
        return w8a16_linear(x, self.qweight, self.scales, norm_weight=norm_weight, eps=eps, out_dtype=torch.float32)

    def argmax(self, x: Tensor, workspace: Tensor, norm_weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
        """The ids of the largest logits: int64 `[b]`. `workspace` is that of `qwen_cuda.operators.argmax_workspace`."""
        return w8a16_argmax(x, self.qweight, self.scales, norm_weight=norm_weight, eps=eps, workspace=workspace)

    def save(self, path: str | Path) -> None:
        """Writes a safetensors file, complete or not at all.

        Raises:
            OSError: it cannot be written.
        """
        path = Path(path)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        tensors = {"qweight": self.qweight.cpu().contiguous(), "scales": self.scales.cpu().contiguous()}
        try:
            save_file(tensors, temporary, metadata={"format": FORMAT, "version": VERSION})
            temporary.chmod(0o644)  # safetensors lets only the owner read
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str = "cpu") -> W8Head:
        """Reads what `save` wrote.

        Raises:
            HeadFileError: the file is missing, broken, of another kind or version, or its tensors are no head's.
        """
        try:
            with safe_open(path, framework="pt", device=str(device)) as file:
                found = file.metadata() or {}
                if found.get("format") != FORMAT:
                    raise HeadFileError(f"{path} is no int8 head: its metadata must name the format {FORMAT}.")
                if found.get("version") != VERSION:
                    raise HeadFileError(
                        f"{path} is an int8 head of version {found.get('version')}; this program reads version "
                        f"{VERSION}: quantise the head again."
                    )
                names = sorted(file.keys())
                if names != ["qweight", "scales"]:
                    raise HeadFileError(f"{path} holds {', '.join(names)}; it must hold qweight and scales.")
                head = cls(file.get_tensor("qweight"), file.get_tensor("scales"))
        except (SafetensorError, OSError) as error:
            raise HeadFileError(f"{path} cannot be read: {str(error).strip()}.") from None
        head._check(path)
        return head

    def _check(self, path: str | Path) -> None:
        q, s = self.qweight, self.scales
        fits = q.dtype == torch.int8 and s.dtype == torch.float32 and q.dim() == s.dim() == 2 and s.numel() > 0
        fits = fits and q.shape[0] == s.shape[0] and q.shape[1] % s.shape[1] == 0
        if not fits or self.group not in (*GROUPS, q.shape[1]):
            raise HeadFileError(
                f"{path} holds qweight {list(q.shape)} {q.dtype} and scales {list(s.shape)} {s.dtype}; they must be "
                "int8 [n, k] and float32 [n, k / group], group 32, 64, 128 or k."
            )
        if not bool((s.isfinite() & (s >= 0)).all()):
            raise HeadFileError(f"{path} holds scales that are negative, infinite or NaN: quantise the head again.")
