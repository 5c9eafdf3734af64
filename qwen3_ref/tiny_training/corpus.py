"""The corpus as token ids, written and encoded by several processes: the same for a seed, whatever their number."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from qwen3_ref.tiny_training.bpe import END_OF_TEXT
from qwen3_ref.tiny_training.documents import Document, write_document
from qwen3_ref.tiny_training.encoding import CachedEncoder

CHUNK = 2_000  # documents drawn from one random generator

_encoder: CachedEncoder | None = None  # of a worker process


@dataclass
class Tokens:
    """Documents one after the other, each ended by <|endoftext|>.

    Attributes:
        ids: `[n]` uint16.
        trained: `[n]` bool, False for tokens that are context only.
        starts: `[documents]` int64, where each document begins in `ids`.
        kinds: documents and tokens of each kind.
    """

    ids: npt.NDArray[np.uint16]
    trained: npt.NDArray[np.bool_]
    starts: npt.NDArray[np.int64]
    kinds: dict[str, tuple[int, int]]

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, length: int) -> npt.NDArray[np.int64]:
        """Where to cut the tokens into rows of `length + 1`: `[rows]` int64, the first token of each.

        Every row starts with a document, as a prompt does. A document that a row's end cuts off starts the next row
        whole, unless it is longer than a row.
        """
        starts, at = self.starts, 0
        rows: list[int] = []
        while starts[at] + length + 1 <= len(self):
            rows.append(int(starts[at]))
            cut = int(np.searchsorted(starts, starts[at] + length, side="right")) - 1
            at = max(cut, at + 1)
            if at == len(starts):
                break
        return np.array(rows, dtype=np.int64)


def encode_document(encoder: CachedEncoder, document: Document) -> tuple[list[int], list[bool]]:
    """Token ids of a document with <|endoftext|> behind it, and which of them the model is trained to write."""
    ids: list[int] = []
    trained: list[bool] = []
    for text, wanted in document.segments:
        part = encoder.encode(text)
        ids += part
        trained += [wanted] * len(part)
    return [*ids, *encoder.encode(END_OF_TEXT)], [*trained, True]


def documents(seed: int, chunk: int, count: int = CHUNK) -> Iterator[Document]:
    """The documents of one chunk, those that are held out among them."""
    rng = Random(f"corpus {seed} {chunk}")
    for _ in range(count):
        yield write_document(rng)


def held_out_documents(seed: int, count: int) -> list[Document]:
    """The first `count` held-out documents of a seed. No training run has seen them, whatever its seed."""
    found: list[Document] = []
    chunk = 0
    while len(found) < count:
        found += [document for document in documents(seed, chunk) if document.held_out]
        chunk += 1
    return found[:count]


def gather(encoder: CachedEncoder, drawn: Iterable[Document]) -> Tokens:
    """Encodes documents one after the other."""
    ids: list[int] = []
    trained: list[bool] = []
    starts: list[int] = []
    counts: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for document in drawn:
        document_ids, document_trained = encode_document(encoder, document)
        starts.append(len(ids))
        ids += document_ids
        trained += document_trained
        counts[document.kind] += 1
        tokens[document.kind] += len(document_ids)
    kinds = {kind: (counts[kind], tokens[kind]) for kind in sorted(counts)}
    return Tokens(
        np.array(ids, dtype=np.uint16), np.array(trained, dtype=np.bool_), np.array(starts, dtype=np.int64), kinds
    )


def _start_worker(tokenizer_json: str) -> None:
    global _encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    _encoder = CachedEncoder(Tokenizer.from_str(tokenizer_json))


def _work(job: tuple[int, int, int]) -> tuple[Tokens, list[Document]]:
    assert _encoder is not None
    kept: list[Document] = []
    held_out: list[Document] = []
    for document in documents(*job):
        (held_out if document.held_out else kept).append(document)
    return gather(_encoder, kept), held_out


def build_corpus(tokenizer: Tokenizer, seed: int, count: int, processes: int) -> tuple[Tokens, list[Document]]:
    """`count` documents: those to train on as tokens, and those that are held out (see `Document.held_out`)."""
    jobs = [(seed, chunk, min(CHUNK, count - chunk * CHUNK)) for chunk in range(-(-count // CHUNK))]
    if processes == 1:
        _start_worker(tokenizer.to_str())
        results = [_work(job) for job in jobs]
    else:
        # Not forked: the parent has threads, and their locks would be copied in whatever state they are.
        with multiprocessing.get_context("spawn").Pool(processes, _start_worker, (tokenizer.to_str(),)) as pool:
            results = list(pool.imap(_work, jobs))
    parts = [part for part, _ in results]
    held_out = [document for _, found in results for document in found]
    offsets = np.cumsum([0] + [len(part) for part in parts[:-1]])
    kinds = {
        kind: (
            sum(part.kinds.get(kind, (0, 0))[0] for part in parts),
            sum(part.kinds.get(kind, (0, 0))[1] for part in parts),
        )
        for kind in sorted({kind for part in parts for kind in part.kinds})
    }
    corpus = Tokens(
        ids=np.concatenate([part.ids for part in parts]),
        trained=np.concatenate([part.trained for part in parts]),
        starts=np.concatenate([part.starts + offset for part, offset in zip(parts, offsets, strict=True)]),
        kinds=kinds,
    )
    return corpus, held_out
