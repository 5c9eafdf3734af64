"""The mathematics of Qwen3 in slow, readable PyTorch: the oracle of every test in this repository."""

from qwen3_ref.cache import KVCache
from qwen3_ref.config import QWEN3_0_6B, ConfigError, Qwen3Config
from qwen3_ref.generate import Engine, Generation, Piece, ReferenceEngine, generate
from qwen3_ref.model import Qwen3
from qwen3_ref.sampling import Sampler, SamplingParams
from qwen3_ref.tokenizer import Tokenizer, TokenizerError
from qwen3_ref.weights import CheckpointError, save_pretrained

__all__ = [
    "QWEN3_0_6B",
    "CheckpointError",
    "ConfigError",
    "Engine",
    "Generation",
    "KVCache",
    "Piece",
    "Qwen3",
    "Qwen3Config",
    "ReferenceEngine",
    "Sampler",
    "SamplingParams",
    "Tokenizer",
    "TokenizerError",
    "generate",
    "save_pretrained",
]
