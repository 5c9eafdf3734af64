"""Text to token ids and back, with the checkpoint's own vocabulary and chat template.

The work is done by the `tokenizers` library (the engine under transformers' tokenizers) and by Jinja; importing
transformers, which takes seconds, is not needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as _Tokenizer
from tokenizers.decoders import DecodeStream as _DecodeStream

Message = dict[str, str]
"""One turn of a chat: `{"role": "system" | "user" | "assistant", "content": text}`."""


class TokenizerError(ValueError):
    """A tokenizer file that is missing or broken, or a chat that the template refuses."""


class Tokenizer:
    """A byte-level BPE tokenizer read from a model directory.

    Attributes:
        chat_template: Jinja source, or None when the checkpoint has none.
        eos_token_id: the token that ends an answer by `tokenizer_config.json`, or None.
    """

    def __init__(
        self, tokenizer: _Tokenizer, chat_template: str | None = None, special_tokens: Mapping[str, str] | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self.chat_template = chat_template
        self._special_tokens = dict(special_tokens or {})
        eos = self._special_tokens.get("eos_token")
        self.eos_token_id = None if eos is None else tokenizer.token_to_id(eos)

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> Tokenizer:
        """Reads `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja` (the last two may be absent).

        Raises:
            TokenizerError: `tokenizer.json` is missing or a file cannot be read.
        """
        directory = Path(directory)
        path = directory / "tokenizer.json"
        if not path.exists():
            raise TokenizerError(f"{path} does not exist; a model directory must hold a tokenizer.json.")
        try:
            tokenizer = _Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise TokenizerError(f"{path} is not a tokenizer file: {error}.") from None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        try:
            config_path, template_path = directory / "tokenizer_config.json", directory / "chat_template.jinja"
            config = json.loads(config_path.read_text(encoding="utf-8")) if config_path.exists() else {}
            template = template_path.read_text(encoding="utf-8") if template_path.exists() else _template_in(config)
            return cls(tokenizer, template, _special_tokens_in(config))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
            raise TokenizerError(f"{directory}: the tokenizer's configuration cannot be read: {error}.") from None
        except (AttributeError, KeyError, TypeError):
            raise TokenizerError(
                f"{directory}: the tokenizer's configuration cannot be read: tokenizer_config.json must be an object, "
                "its special tokens text, and its chat_template text or a list of named ones."
            ) from None

    def __len__(self) -> int:
        """Token ids that exist, added tokens included (a model's embedding may be padded beyond)."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; nothing is added around it. Special tokens written in the text are recognised."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of `token_ids`. Bytes that are no UTF-8 become U+FFFD; ids beyond the vocabulary give nothing."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special))

    def token(self, token_id: int) -> str:
        """The text of one token alone, for tables and plots; U+FFFD stands for a part of a character."""
        return self.decode([token_id], skip_special=False)

    def stream(self) -> TextStream:
        """A decoder that takes one token at a time and gives text that is never cut inside a character."""
        return TextStream(self._tokenizer)

    def render_chat(
        self, messages: Sequence[Message], enable_thinking: bool = True, add_generation_prompt: bool = True
    ) -> str:
        """The chat as the text that the model was trained on.

        Args:
            enable_thinking: False puts an empty think block in front of the answer, so that the model answers at once.
            add_generation_prompt: ends with the header of an assistant's turn.
        Raises:
            TokenizerError: there is no template, or it refuses the messages.
        """
        if self.chat_template is None:
            raise TokenizerError("this checkpoint has no chat template; give it a plain prompt instead.")

        def refuse(message: str) -> None:
            raise TemplateError(message)

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = lambda value, **kw: json.dumps(value, ensure_ascii=False, **kw)
        try:
            return environment.from_string(self.chat_template).render(
                messages=list(messages),
                tools=None,
                add_generation_prompt=add_generation_prompt,
                enable_thinking=enable_thinking,
                raise_exception=refuse,
                **self._special_tokens,
            )
        except Exception as error:  # the template is a program of the checkpoint's author: it may raise anything
            reason = str(error).rstrip(".")
            raise TokenizerError(f"the chat template refuses these messages: {reason}.") from None


class TextStream:
    """Text of a growing token sequence: `push` gives what has become certain, `flush` the rest."""

    def __init__(self, tokenizer: _Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = _DecodeStream(skip_special_tokens=True)
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        """Text that `token_id` completes; empty while it ends inside a multi-byte character."""
        self._pending.append(token_id)
        text = self._stream.step(self._tokenizer, token_id)
        if text is None:
            return ""
        self._pending.clear()
        return str(text)

    def flush(self) -> str:
        """What is left when no token follows: an unfinished character, as U+FFFD."""
        text = self._tokenizer.decode(self._pending, skip_special_tokens=True)
        self._pending.clear()
        return str(text)


def _template_in(config: dict[str, Any]) -> str | None:
    """Older checkpoints keep the template in tokenizer_config.json, as one string or a list of named ones."""
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if not isinstance(template, str | None):
        raise TypeError
    return template


def _special_tokens_in(config: dict[str, Any]) -> dict[str, str]:
    """The special tokens by role, as templates name them. A token is text, or an object that holds it as `content`."""
    tokens = {}
    for role in ("bos_token", "eos_token", "pad_token", "unk_token"):
        token = config.get(role)
        token = token["content"] if isinstance(token, dict) else token
        if not isinstance(token, str | None):
            raise TypeError
        if token is not None:
            tokens[role] = token
    return tokens
