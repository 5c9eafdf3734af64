"""The operators as Python functions. Importing this registers `torch.ops.qwen_cuda`, and builds what is missing.

Each runs its CUDA kernel on CUDA tensors and plain C++ on CPU tensors. `torch.ops.qwen_sim` has the same operators,
which run the CUDA kernels in the simulator, on CPU tensors: see `qwen_cuda.loading.backend`.
"""

from qwen_cuda.kv_cache_format import CastArgs, KVCacheFormat
from qwen_cuda.operators.advance_decode import advance_decode
from qwen_cuda.operators.decode_linear import decode_linear
from qwen_cuda.operators.fused_decode_attention import fused_decode_attention
from qwen_cuda.operators.fused_decode_attention_quantized import fused_decode_attention_quantized
from qwen_cuda.operators.head import argmax_workspace, head_argmax, w8a16_argmax, w8a16_linear
from qwen_cuda.operators.kv_arguments import Contiguous, HadamardArgs, KVCacheOut, NormArgs, QueriesOut, RopeArgs
from qwen_cuda.operators.norm_rope_hadamard_quant_store import load_kv, norm_rope_hadamard_quant_store, store_kv
from qwen_cuda.operators.paged_attention import (
    attention_workspace,
    check_block_table,
    merge_partitions,
    paged_attention_grouped,
    paged_attention_partials,
    paged_attention_split,
)
from qwen_cuda.operators.paged_attention_quantized import paged_attention_quantized
from qwen_cuda.operators.qk_norm_rope_cache_write import check_indices, cos_sin_table, qk_norm_rope_cache_write
from qwen_cuda.operators.rms_norm import add_rms_norm, add_rms_norm_, rms_norm, rms_norm_
from qwen_cuda.operators.sample_tokens import sample_tokens, seen_tokens
from qwen_cuda.operators.silu_mul import silu_mul

__all__ = [
    "CastArgs",
    "Contiguous",
    "HadamardArgs",
    "KVCacheFormat",
    "KVCacheOut",
    "NormArgs",
    "QueriesOut",
    "RopeArgs",
    "add_rms_norm",
    "add_rms_norm_",
    "advance_decode",
    "argmax_workspace",
    "attention_workspace",
    "check_block_table",
    "check_indices",
    "cos_sin_table",
    "decode_linear",
    "fused_decode_attention",
    "fused_decode_attention_quantized",
    "head_argmax",
    "load_kv",
    "merge_partitions",
    "norm_rope_hadamard_quant_store",
    "paged_attention_grouped",
    "paged_attention_partials",
    "paged_attention_quantized",
    "paged_attention_split",
    "qk_norm_rope_cache_write",
    "rms_norm",
    "rms_norm_",
    "sample_tokens",
    "seen_tokens",
    "silu_mul",
    "store_kv",
    "w8a16_argmax",
    "w8a16_linear",
]
