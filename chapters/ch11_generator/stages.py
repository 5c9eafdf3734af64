"""The switches of the stages that the chapters add to the generator."""

from __future__ import annotations

from dataclasses import dataclass, fields

from chapters.ch11_generator.errors import ArgumentError

PLAIN_CACHE = "bf16"
KV_CACHES = (PLAIN_CACHE, "fp8", "fp4")  # those of chapter 10, which cannot be asked before PyTorch is loaded
_FUSED = "fused"


@dataclass(frozen=True)
class Stages:
    """What the backend `kernels` uses of the chapters; by default all that changes no weight.

    Attributes:
        attention: of a decode step: `fused` (chapter 6, one launch), or a backend of chapter 6's `paged_attention`.
        w8_head: the output head as int8 (chapter 8), whose quality `make quality-gate` measures.
        graphs: decode steps are CUDA graphs (chapter 9). Without a GPU there are none.
        kv_cache: what keys and values are kept as: `bf16`, the 16 bits of the model's dtype, or `fp8`, `fp4` (chapter
            10).
    Raises:
        ArgumentError: there is no such cache, or it does not go with the attention.
    """

    attention: str = _FUSED
    w8_head: bool = False
    graphs: bool = True
    kv_cache: str = PLAIN_CACHE

    def __post_init__(self) -> None:
        if self.kv_cache not in KV_CACHES:
            raise ArgumentError(f"--kv-cache is {self.kv_cache!a}; it must be one of {', '.join(KV_CACHES)}.")
        if self.kv_cache != PLAIN_CACHE and self.attention != _FUSED:
            raise ArgumentError(
                f"--kv-cache is {self.kv_cache} and --attention {self.attention!a}; a quantised cache has one "
                "attention, its own: leave one of them out."
            )

    def require_none(self, backend: str) -> None:
        """Fails when a switch was set that `backend` does not have.

        Raises:
            ArgumentError: it names the switch.
        """
        for field in fields(self):
            if getattr(self, field.name) != field.default:
                option = "--" + field.name.replace("_", "-")
                raise ArgumentError(f"{option} is a switch of the backend kernels, and the backend is {backend}.")


def switch(option: str, text: str | None) -> bool | None:
    """`on` or `off`; None stays None.

    Raises:
        ArgumentError: it is something else.
    """
    if text is None:
        return None
    if text not in ("on", "off"):
        raise ArgumentError(f"{option} is {text!a}; it must be on or off.")
    return text == "on"
