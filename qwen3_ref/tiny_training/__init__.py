"""How the tiny checkpoint in `qwen3_ref/tiny` is made: a story grammar, a tokenizer, a training loop, a model card.

Everything starts from a seed and from the text in this package; no network, no data set and no word list is read.

    python -m qwen3_ref.tiny_training.train --out qwen3_ref/tiny --minutes 5
"""
