// What the operators over codes and scales check alike.
#include "quantized_arguments.h"

#include <utility>

namespace qwen {

using at::Tensor;

void check_aligned(const char* op, const char* name, const void* data, int64_t bytes) {
  TORCH_CHECK(reinterpret_cast<uintptr_t>(data) % bytes == 0, op, ": ", name, " begins at an address that is no ",
              "multiple of ", bytes, " bytes; pass ", name, ".contiguous(), or a slice that begins at one.");
}

void check_group(const char* op, int64_t group) {
  TORCH_CHECK(group == 16 || group == 32 || group == 64 || group == 128, op, ": group is ", group,
              "; it must be 16, 32, 64 or 128.");
}

int64_t value_bytes(const QuantizedLayout& layout, int64_t head_dim) {
  return layout.values == ValueFormat::kE4M3 ? head_dim : head_dim / 2;
}

int64_t scale_bytes(const QuantizedLayout& layout, int64_t head_dim) {
  return head_dim / layout.group * (layout.scale_format == ScaleFormat::kFloat32 ? 4 : 1);
}

void check_bytes(const char* op, const char* name, const Tensor& t, const char* like_name, const Tensor& like) {
  TORCH_CHECK(t.scalar_type() == at::kByte, op, ": ", name, " has dtype ", t.scalar_type(), "; it must be uint8.");
  TORCH_CHECK(t.device() == like.device(), op, ": ", name, " is on ", t.device(), " and ", like_name, " on ",
              like.device(), "; they must be on one device.");
}

int64_t take_layout(
    const char* op, QuantizedLayout& layout, const QuantizedCaches& caches, const char* like_name, const Tensor& like) {
  const at::IntArrayRef where = caches.where;
  const Tensor &k_cache = caches.k_cache, &v_cache = caches.v_cache == nullptr ? k_cache : *caches.v_cache;
  TORCH_CHECK(where.size() == 4, op, ": cache_layout has ", where.size(), " numbers; it must be block_size, the ",
              "strides of the rows of codes and of scales, and the offset of the scales: KVCacheFormat.strides.");
  const int64_t size = where[0], rows = size * caches.heads;
  TORCH_CHECK(8 <= size && size <= 256 && (size & (size - 1)) == 0, op, ": cache_layout has blocks of ", size,
              " tokens; block_size must be a power of two from 8 to 256.");
  const int64_t data_row = where[1], scale_row = where[2], scales_at = where[3];
  const int64_t of_codes = value_bytes(layout, caches.head_dim), of_scales = scale_bytes(layout, caches.head_dim);
  const int64_t unit = layout.scale_format == ScaleFormat::kFloat32 ? 4 : 1;
  const int64_t wide = layout.values == ValueFormat::kE4M3 ? 4 : 2;
  const bool records = data_row == scale_row && scales_at >= of_codes && scales_at + of_scales <= data_row;
  const bool sections = data_row >= of_codes && scale_row >= of_scales && scales_at >= (rows - 1) * data_row + of_codes;
  const int64_t needed = scales_at + (rows - 1) * scale_row + of_scales;
  TORCH_CHECK((records || sections) && data_row % wide == 0 && scales_at % unit == 0 && scale_row % unit == 0, op,
              ": cache_layout is ", where, "; with ", of_codes, " bytes of codes and ", of_scales,
              " of scales a head, ", "rows overlap or are not aligned: take KVCacheFormat.strides.");
  for (const auto& [name, cache] :
       {std::pair<const char*, const Tensor*>{"k_cache", &k_cache}, {"v_cache", &v_cache}}) {
    check_bytes(op, name, *cache, like_name, like);
    TORCH_CHECK(cache->layout() == at::kStrided && cache->dim() == 2 && cache->size(1) >= needed &&
                    cache->stride(1) == 1 && cache->stride(0) >= cache->size(1) && cache->stride(0) % 4 == 0,
                op, ": ", name, " has shape ", cache->sizes(), " and strides ", cache->strides(),
                "; it must be [num_blocks, bytes] with at least ", needed,
                " bytes a block, side by side, and blocks a multiple of 4 bytes apart.");
    check_aligned(op, name, cache->const_data_ptr(), 4);
  }
  TORCH_CHECK(v_cache.sizes() == k_cache.sizes() && v_cache.strides() == k_cache.strides(), op, ": v_cache has shape ",
              v_cache.sizes(), " and k_cache ", k_cache.sizes(), "; they must have one shape and the same strides.");
  layout.data_row_stride = data_row, layout.scale_row_stride = scale_row;
  layout.data_block_stride = layout.scale_block_stride = k_cache.stride(0);
  layout.heads = int32_t(caches.heads), layout.block_shift = 0;
  while (int64_t(1) << layout.block_shift < size) ++layout.block_shift;
  return scales_at;
}

}  // namespace qwen
