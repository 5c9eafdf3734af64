"""Our operators in an unmodified Qwen2, Qwen2.5 or Qwen3 model of transformers: `patch(model)`, `unpatch(model)`.

    from qwen_cuda.integrations.huggingface import patch
    model = patch(AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B", dtype="auto", device_map="cuda"))

A patched module is the same object with the same parameters, hooks and names; only its class is another one, a
subclass of its own whose `forward` calls our operators. So `generate`, `save_pretrained`, `to`, `torch.compile` and
training go on as before.
"""

from qwen_cuda.integrations.huggingface.checks import PatchError
from qwen_cuda.integrations.huggingface.patching import is_patched, patch, patched_modules, unpatch

__all__ = ["PatchError", "is_patched", "patch", "patched_modules", "unpatch"]
