"""Conversations, and the text that Qwen3's own chat template makes of them."""

from __future__ import annotations

Turn = tuple[str, str] | tuple[str, str, str]
Case = tuple[list[Turn], bool, bool, str]
"""Turns (role, content, and perhaps the thought), enable_thinking, add_generation_prompt, and what comes out."""

CASES: dict[str, Case] = {
    "one question": (
        [
            ("user", "Hi!"),
        ],
        True,
        True,
        ("<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n"),
    ),
    "one question, thinking off": (
        [
            ("user", "Hi!"),
        ],
        False,
        True,
        ("<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"),
    ),
    "no generation prompt": (
        [
            ("user", "Hi!"),
        ],
        True,
        False,
        "<|im_start|>user\nHi!<|im_end|>\n",
    ),
    "system message": (
        [
            ("system", "Be brief."),
            ("user", "Hi!"),
        ],
        True,
        True,
        ("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n"),
    ),
    "system message, thinking off": (
        [
            ("system", "Be brief."),
            ("user", "Hi!"),
        ],
        False,
        True,
        (
            "<|im_start|>system\nBe brief.<|im_end|>\n"
            "<|im_start|>user\nHi!<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n\n"
        ),
    ),
    "system message in the middle": (
        [
            ("user", "Hi!"),
            ("assistant", "Hello."),
            ("system", "Be brief."),
            ("user", "Go on."),
        ],
        False,
        True,
        (
            "<|im_start|>user\nHi!<|im_end|>\n"
            "<|im_start|>assistant\nHello.<|im_end|>\n"
            "<|im_start|>system\nBe brief.<|im_end|>\n"
            "<|im_start|>user\nGo on.<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n\n"
        ),
    ),
    "earlier answer": (
        [
            ("user", "Hi!"),
            ("assistant", "Hello."),
            ("user", "Who are you?"),
        ],
        True,
        True,
        (
            "<|im_start|>user\nHi!<|im_end|>\n"
            "<|im_start|>assistant\nHello.<|im_end|>\n"
            "<|im_start|>user\nWho are you?<|im_end|>\n"
            "<|im_start|>assistant\n"
        ),
    ),
    "earlier answer, thinking off": (
        [
            ("user", "Hi!"),
            ("assistant", "Hello."),
            ("user", "Who are you?"),
        ],
        False,
        True,
        (
            "<|im_start|>user\nHi!<|im_end|>\n"
            "<|im_start|>assistant\nHello.<|im_end|>\n"
            "<|im_start|>user\nWho are you?<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n\n"
        ),
    ),
    "thought of an earlier answer is dropped": (
        [
            ("user", "Hi!"),
            ("assistant", "<think>\nA greeting.\n</think>\n\nHello."),
            ("user", "Who are you?"),
        ],
        True,
        True,
        (
            "<|im_start|>user\nHi!<|im_end|>\n"
            "<|im_start|>assistant\nHello.<|im_end|>\n"
            "<|im_start|>user\nWho are you?<|im_end|>\n"
            "<|im_start|>assistant\n"
        ),
    ),
    "two earlier thoughts are dropped": (
        [
            ("user", "1?"),
            ("assistant", "<think>\na\n</think>\n\nb"),
            ("user", "2?"),
            ("assistant", "<think>\nc\n</think>\n\nd"),
            ("user", "3?"),
        ],
        False,
        True,
        (
            "<|im_start|>user\n1?<|im_end|>\n"
            "<|im_start|>assistant\nb<|im_end|>\n"
            "<|im_start|>user\n2?<|im_end|>\n"
            "<|im_start|>assistant\nd<|im_end|>\n"
            "<|im_start|>user\n3?<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n\n"
        ),
    ),
    "empty thought of an earlier answer is dropped": (
        [
            ("user", "Hi!"),
            ("assistant", "<think>\n\n</think>\n\nHello."),
            ("user", "Why?"),
        ],
        False,
        True,
        (
            "<|im_start|>user\nHi!<|im_end|>\n"
            "<|im_start|>assistant\nHello.<|im_end|>\n"
            "<|im_start|>user\nWhy?<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n\n"
        ),
    ),
    "last answer gets an empty thought": (
        [
            ("user", "Hi!"),
            ("assistant", "Hello."),
        ],
        True,
        False,
        ("<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nHello.<|im_end|>\n"),
    ),
    "last answer keeps its thought": (
        [
            ("user", "Hi!"),
            ("assistant", "<think>\nA greeting.\n</think>\n\nHello."),
        ],
        True,
        False,
        (
            "<|im_start|>user\nHi!<|im_end|>\n"
            "<|im_start|>assistant\n<think>\nA greeting.\n</think>\n\nHello.<|im_end|>\n"
        ),
    ),
    "last answer with a thought and a prompt": (
        [
            ("user", "Hi!"),
            ("assistant", "<think>\nA greeting.\n</think>\n\nHello."),
        ],
        True,
        True,
        (
            "<|im_start|>user\nHi!<|im_end|>\n"
            "<|im_start|>assistant\n<think>\nA greeting.\n</think>\n\nHello.<|im_end|>\n"
            "<|im_start|>assistant\n"
        ),
    ),
    "thought in its own field": (
        [
            ("user", "Hi!"),
            ("assistant", "Hello.", "A greeting."),
        ],
        True,
        False,
        (
            "<|im_start|>user\nHi!<|im_end|>\n"
            "<|im_start|>assistant\n<think>\nA greeting.\n</think>\n\nHello.<|im_end|>\n"
        ),
    ),
    "own field of an earlier answer is dropped": (
        [
            ("user", "Hi!"),
            ("assistant", "Hello.", "A greeting."),
            ("user", "Why?"),
        ],
        True,
        True,
        (
            "<|im_start|>user\nHi!<|im_end|>\n"
            "<|im_start|>assistant\nHello.<|im_end|>\n"
            "<|im_start|>user\nWhy?<|im_end|>\n"
            "<|im_start|>assistant\n"
        ),
    ),
    "two answers in a row": (
        [
            ("user", "Hi!"),
            ("assistant", "<think>\nOne.\n</think>\n\nHello."),
            ("assistant", "And welcome."),
        ],
        True,
        False,
        (
            "<|im_start|>user\nHi!<|im_end|>\n"
            "<|im_start|>assistant\n<think>\nOne.\n</think>\n\nHello.<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n\nAnd welcome.<|im_end|>\n"
        ),
    ),
    "first of two answers without a thought": (
        [
            ("user", "Hi!"),
            ("assistant", "Hello."),
            ("assistant", "<think>\nTwo.\n</think>\n\nAnd welcome."),
        ],
        True,
        False,
        (
            "<|im_start|>user\nHi!<|im_end|>\n"
            "<|im_start|>assistant\nHello.<|im_end|>\n"
            "<|im_start|>assistant\n<think>\nTwo.\n</think>\n\nAnd welcome.<|im_end|>\n"
        ),
    ),
    "blank lines around a thought": (
        [
            ("user", "Hi!"),
            ("assistant", "<think>\n\n\nA greeting.\n\n\n</think>\n\n\n\nHello.\n"),
        ],
        True,
        False,
        (
            "<|im_start|>user\nHi!<|im_end|>\n"
            "<|im_start|>assistant\n<think>\nA greeting.\n</think>\n\nHello.\n<|im_end|>\n"
        ),
    ),
    "spaces and line ends stay": (
        [
            ("user", "  a\n\nb "),
        ],
        True,
        True,
        ("<|im_start|>user\n  a\n\nb <|im_end|>\n<|im_start|>assistant\n"),
    ),
    "other scripts": (
        [
            ("user", "你好 🙂"),
        ],
        False,
        True,
        ("<|im_start|>user\n你好 🙂<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"),
    ),
    "answer before any question": (
        [
            ("assistant", "Hello."),
        ],
        True,
        False,
        "<|im_start|>assistant\nHello.<|im_end|>\n",
    ),
    "empty question": (
        [
            ("user", ""),
        ],
        True,
        True,
        ("<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"),
    ),
    "close tag without an open one": (
        [
            ("user", "Hi!"),
            ("assistant", "hm</think>Hello."),
        ],
        True,
        False,
        ("<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</think>\n\nHello.<|im_end|>\n"),
    ),
}
