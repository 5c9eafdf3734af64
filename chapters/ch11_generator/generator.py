"""`Generator`: a model, its tokenizer and an engine, behind a few methods.

Prompts are text; answers come whole (`generate`, `generate_batch`, `chat`) or in pieces (`stream`, `stream_chat`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from chapters.ch11_generator.backends import BACKENDS, BatchEngines, Place, check_backend, choose_backend
from chapters.ch11_generator.batch import answer_together
from chapters.ch11_generator.default_sampling import default_sampling
from chapters.ch11_generator.errors import ArgumentError, GeneratorError, ModelError, translated
from chapters.ch11_generator.placement import choose_device, choose_dtype
from chapters.ch11_generator.prompt import MOST_PROMPTS, check_text
from chapters.ch11_generator.request import Request, request
from chapters.ch11_generator.results import Figures, Result
from chapters.ch11_generator.stages import Stages
from qwen3_ref.config import Qwen3Config
from qwen3_ref.cost import parameters
from qwen3_ref.generate import Engine, Generation, Piece
from qwen3_ref.hub import HubError, ModelSource, resolve_model
from qwen3_ref.sampling import SamplingParams
from qwen3_ref.tokenizer import Message, Tokenizer

_SMALLER = "use a smaller model, bfloat16, fewer tokens, or another device"
_FIRST_CONTEXT = 1024  # tokens; the first KV cache is this long, so that short requests do not grow it one by one


class Stream:
    """A running generation. Iterate over it for `Piece(token_id, text)`; `result` holds what has come so far.

    Attributes:
        prompt: the text that was given to the model, chat template included.
        max_new_tokens: the limit, lowered to what the context has room for.
    """

    def __init__(
        self, owner: Generator, run: Generation, prompt: str, ids: list[int], max_new_tokens: int, seed: int | None
    ) -> None:
        self.prompt, self.max_new_tokens = prompt, max_new_tokens
        self._owner, self._run, self._prompt_tokens, self._seed = owner, run, len(ids), seed

    def __iter__(self) -> Iterator[Piece]:
        pieces = iter(self._run)
        while True:
            if not self._owner.runs(self._run):
                raise GeneratorError("another generation has begun on this generator; finish one before the next.")
            with translated("generating", _SMALLER):
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    @property
    def result(self) -> Result:
        return self._owner.result_of(self._run, self._prompt_tokens, self._seed)


class Generator:
    """Generates text with one model.

    Args:
        model: `auto` (Qwen/Qwen3-0.6B from the cache or the hub, else the tiny model), `tiny`, a hub id, a directory.
        device: `auto` (a GPU if there is one), `cpu`, `cuda`, `cuda:N`.
        dtype: `auto` (bfloat16; see `placement.choose_dtype`), `float32`, `bfloat16`, `float16`.
        backend: `auto` (the kernels on a GPU, and where `stages` sets a switch of theirs; else the reference) or one
            of `backends.BACKENDS`.
        stages: switches of the backend `kernels`.
        report: is called with one sentence before a download begins, and when a stage cannot be used.
        progress: shows a bar while weights are downloaded to a terminal.
    Attributes:
        source: where the model came from; `source.note` says if `auto` had to take the tiny model.
        config, tokenizer: of the model.
        device, dtype, backend: what was chosen, by name.
        default_sampling: from the model's generation_config.json; greedy if it asks for no sampling.
    Raises:
        ArgumentError: an argument that names nothing.
        ModelError: the model cannot be found, fetched or read.
        DeviceError: the device is not there, or lacks the dtype.
        OutOfMemoryError: the weights do not fit.
    """

    def __init__(
        self,
        model: str | Path = "auto",
        device: str = "auto",
        dtype: str = "auto",
        backend: str = "auto",
        *,
        stages: Stages | None = None,
        report: Callable[[str], None] | None = None,
        progress: bool = True,
    ) -> None:
        check_backend(backend)
        torch_device = choose_device(device)
        torch_dtype = choose_dtype(dtype, torch_device)
        self.device, self.dtype = str(torch_device), str(torch_dtype).removeprefix("torch.")
        try:
            self.source: ModelSource = resolve_model(model, report=report, progress=progress)
        except (HubError, ValueError) as error:
            raise ModelError(str(error)) from error
        directory = self.source.dir
        with translated(f"loading {self.source.name} on {self.device}", _SMALLER):
            self.config = Qwen3Config.from_pretrained(directory)
            self.tokenizer = Tokenizer.from_pretrained(directory)
            self._check_vocabulary()
            self.default_sampling = default_sampling(directory / "generation_config.json")
            place = Place(directory, torch_device, torch_dtype, stages or Stages(), report)
            self.backend, why = choose_backend(backend, torch_device, torch_dtype, self.config.head_dim, place.stages)
            if why is not None and report is not None:
                report(why)
            self._make_engine = BACKENDS[self.backend](place)
        self._engine: Engine | None = None
        self._last: tuple[list[int], Generation] | None = None  # the newest prompt's ids and its generation

    @property
    def max_context(self) -> int:
        """Tokens that prompt and answer may have together."""
        return self.config.max_position_embeddings

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters in the dtype that was chosen."""
        return parameters(self.config) * (4 if self.dtype == "float32" else 2)

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat` can be used."""
        return self.tokenizer.chat_template is not None

    def generate(
        self,
        prompt: str,
        max_new_tokens: int = 256,
        sampling: SamplingParams | None = None,
        stop: Sequence[str] = (),
    ) -> Result:
        """Continues `prompt`. Arguments and errors as in `stream`."""
        return _finish(self.stream(prompt, max_new_tokens, sampling, stop))

    def chat(
        self,
        messages: Sequence[Message],
        max_new_tokens: int = 256,
        sampling: SamplingParams | None = None,
        stop: Sequence[str] = (),
        *,
        thinking: bool = False,
    ) -> Result:
        """Answers the last of `messages`. Arguments and errors as in `stream_chat`."""
        return _finish(self.stream_chat(messages, max_new_tokens, sampling, stop, thinking=thinking))

    def stream(
        self,
        prompt: str,
        max_new_tokens: int = 256,
        sampling: SamplingParams | None = None,
        stop: Sequence[str] = (),
    ) -> Stream:
        """Starts to continue `prompt`; nothing is computed before the stream is iterated over.

        A second generation may begin only when the first is left: they share one KV cache.

        Args:
            max_new_tokens: at least 1. What the context has no room for is cut off; see `Stream.max_new_tokens`.
            sampling: None takes `default_sampling`. Without a seed, one is drawn and told in the figures.
            stop: strings that end the text.
        Raises:
            ArgumentError: the prompt is empty, is no valid text, or fills the context; a limit or stop is unusable.
            OutOfMemoryError, ModelError, GeneratorError: while iterating, if the model cannot be run.
        """
        return self._start(prompt, max_new_tokens, sampling, stop, reuse=False)

    def stream_chat(
        self,
        messages: Sequence[Message],
        max_new_tokens: int = 256,
        sampling: SamplingParams | None = None,
        stop: Sequence[str] = (),
        *,
        thinking: bool = False,
        reuse_cache: bool = False,
    ) -> Stream:
        """Starts to answer the last of `messages` through the model's chat template.

        Args:
            messages: `{"role": "system" | "user" | "assistant", "content": text}`, oldest first.
            thinking: lets the model think between <think> and </think> before it answers.
            reuse_cache: computes only what differs from the last generation. The sums are then made in another order,
                so equal seeds may give other tokens than without.
        Raises: as `stream`; ModelError if there is no chat template or it refuses the messages.
        """
        return self._start(self.render(messages, thinking), max_new_tokens, sampling, stop, reuse=reuse_cache)

    def generate_batch(
        self,
        prompts: Sequence[str],
        max_new_tokens: int = 256,
        sampling: SamplingParams | None = None,
        stop: Sequence[str] = (),
    ) -> list[Result]:
        """Continues up to 8 prompts: together with the backend `kernels`, else one after the other.

        Arguments and errors as in `stream`; each prompt is drawn for by the same seed.
        """
        if not 1 <= len(prompts) <= MOST_PROMPTS:
            raise ArgumentError(f"there are {len(prompts)} prompts; it must be from 1 to {MOST_PROMPTS}.")
        requests = [self._request(prompt, max_new_tokens, sampling, stop) for prompt in prompts]
        if not isinstance(self._make_engine, BatchEngines):
            return [self.generate(prompt, max_new_tokens, sampling, stop) for prompt in prompts]
        with translated("generating", _SMALLER):
            rows = self._make_engine.rows([one.context for one in requests])
            runs = answer_together(requests, rows, self.tokenizer, stop)
        return [self.result_of(run, len(one.ids), one.seed) for one, run in zip(requests, runs, strict=True)]

    def render(self, messages: Sequence[Message], thinking: bool = False) -> str:
        """The text that the model reads for `messages`, up to where its answer begins."""
        for message in messages:
            check_text("a message", message["content"])
        with translated("rendering the chat", _SMALLER):
            return self.tokenizer.render_chat(messages, enable_thinking=thinking)

    def count_tokens(self, text: str) -> int:
        """Tokens of `text`."""
        return len(self.tokenizer.encode(text))

    def result_of(self, run: Generation, prompt_tokens: int, seed: int | None) -> Result:
        """What `run` has given so far."""
        figures = Figures(
            model=self.source.name,
            device=self.device,
            dtype=self.dtype,
            backend=self.backend,
            prompt_tokens=prompt_tokens,
            reused_tokens=prompt_tokens - len(run.prompt_ids),
            new_tokens=len(run.token_ids),
            prefill_s=run.prefill_s,
            decode_s=run.decode_s,
            seed=seed,
        )
        return Result(run.text, list(run.token_ids), run.finish_reason, figures)

    def runs(self, generation: Generation) -> bool:
        """Whether `generation` is the one that owns the KV cache."""
        return self._last is not None and self._last[1] is generation

    def _start(
        self, prompt: str, max_new_tokens: int, sampling: SamplingParams | None, stop: Sequence[str], *, reuse: bool
    ) -> Stream:
        asked = self._request(prompt, max_new_tokens, sampling, stop)
        ids, limit = asked.ids, asked.max_new_tokens
        with translated("reserving the KV cache", _SMALLER):
            engine = self._engine_for(asked.context)
            kept = _common_prefix(self._held(), ids[:-1]) if reuse else 0
            engine.reset(kept)
            run = Generation(engine, self.tokenizer, ids[kept:], limit, asked.sampling, stop, history=ids[:kept])
        self._last = ids, run
        return Stream(self, run, prompt, ids, limit, asked.seed)

    def _request(
        self, prompt: str, max_new_tokens: int, sampling: SamplingParams | None, stop: Sequence[str]
    ) -> Request:
        context = self.source.name, self.max_context
        return request(self.tokenizer, context, prompt, max_new_tokens, sampling or self.default_sampling, stop)

    def _engine_for(self, tokens: int) -> Engine:
        """An engine with room for `tokens`; a larger one replaces a small one, and what was cached is lost."""
        if self._engine is None or self._engine.max_context < tokens:
            self._engine, self._last = None, None  # free the old cache before the new one is taken
            room = max(_FIRST_CONTEXT, 1 << (tokens - 1).bit_length())
            self._engine = self._make_engine(min(room, self.max_context))
        return self._engine

    def _held(self) -> list[int]:
        """Ids of the tokens in the KV cache: the last prompt and what was drawn after it and fed back."""
        if self._engine is None or self._last is None:
            return []
        ids, run = self._last
        return [*ids, *run.token_ids][: self._engine.length]

    def _check_vocabulary(self) -> None:
        if len(self.tokenizer) > self.config.vocab_size:
            raise ModelError(
                f"the tokenizer of {self.source.name} has {len(self.tokenizer)} tokens, its model only "
                f"{self.config.vocab_size}; they do not belong together."
            )


def _finish(stream: Stream) -> Result:
    for _ in stream:
        pass
    return stream.result


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
