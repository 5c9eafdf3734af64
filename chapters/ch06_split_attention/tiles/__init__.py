"""A candidate beside the reader of chapters 5 and 6, with products on Tensor Cores: the edits that plant it.

`SPLIT`, `FUSED` and `GROUPED` put `TileReader` of tile_reader.cuh where a kernel has `AttentionReader`.
"""

from __future__ import annotations

import torch

from qwen_cuda.building import Edit

NAME = "products on Tensor Cores"
# As the kernels' folder sees it: a path in the tree of edited files, so that edits of the reader count as well.
_READER = "../../chapters/ch06_split_attention/tiles/tile_reader.cuh"
_TWO_AHEAD = Edit("tile_reader.cuh", "kAhead = 1;", "kAhead = kTiles == 1 ? 2 : 1;")
_FIRST_TOKEN = ("first_token_of_lane<Lanes>(warp, lane)", "TileReader<T, Lanes>::first_token(warp, lane)")


def _reader(kernel: str, *more: tuple[str, str]) -> tuple[Edit, ...]:
    """What all kernels need, and `more` pairs (old, new)."""
    needed = (
        ('#include "paged_operands.cuh"\n', f'#include "paged_operands.cuh"\n#include "{_READER}"\n'),
        ("AttentionReader<T, Lanes>", "TileReader<T, Lanes>"),
        ("  Reader reader;\n", "  Reader reader(lane);\n"),
        ("reader.leave(shared, warp, lane)", "reader.leave(shared, warp)"),
        _FIRST_TOKEN,
    )
    return tuple(Edit(kernel, old, new) for old, new in (*needed, *more))


GROUPED = _reader("paged_attention_grouped.cu", ("first_block, context, lane)", "first_block, context)"))
SPLIT = _reader("paged_attention_split.cu", ("first_block, end, lane)", "first_block, end)"))
FUSED = _reader(
    "fused_decode_attention.cu",
    ("max(newest - begin, 0) / Lanes::kTurn", "max(newest - begin, 0) / Reader::kTurn"),
    (
        """    typename Reader::RawQuery query;
#pragma unroll
    for (int p = 0; p < Lanes::kPacks; ++p) {
#pragma unroll
      for (int g = 0; g < Lanes::kGroup; ++g) query.packs[g][p] = fresh.pack(g, p, lane);
    }
    reader.set_query(query, a.scale);
""",
        "    reader.set_query(Reader::RawQuery::of(fresh, lane), a.scale);\n",
    ),
    (
        """(typename Reader::Run& k, typename Reader::Run& v, int first) {
    if (!mine) return;
#pragma unroll
    for (int i = 0; i < Lanes::kRun; ++i) {
      if (first + i != newest) continue;
#pragma unroll
      for (int p = 0; p < Lanes::kPacks; ++p) {
        k.packs[i][p] = *reinterpret_cast<const uint4*>(fresh_head.k + Lanes::dimension(lane, 8 * p));
        v.packs[i][p] = *reinterpret_cast<const uint4*>(fresh_head.v + Lanes::dimension(lane, 8 * p));
      }
    }
  };
""",
        """(typename Reader::Turn& turn_of, int first) {
    if (mine) turn_of.put(newest - first, fresh_head.k, fresh_head.v, lane);
  };
""",
    ),
    ("newest, lane, ready, add_new)", "newest, ready, add_new)"),
)


def by_name(reader: tuple[Edit, ...]) -> dict[str, tuple[Edit, ...]]:
    """The candidates that a tuning has of a kernel; none on a GPU before compute capability 8.0, which has no tiles of
    bfloat16."""
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0):
        return {}
    return {NAME: reader, f"{NAME}, two turns ahead": (*reader, _TWO_AHEAD)}
