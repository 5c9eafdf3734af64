"""Chapter 1: Qwen3 in plain PyTorch, and what one token costs."""
