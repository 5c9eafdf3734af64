// chunk_codes.cuh: 128 numbers of a head, four to a lane as head_transform.cuh has them, as codes with scales.
#pragma once

#include "head_transform.cuh"
#include "quantized_rows.cuh"

struct ChunkCodes {
  uint32_t four;     // codes
  GroupScale scale;  // of the lane's group

  ChunkCodes() = default;
  // Leaves the numbers in units of their scale.
  __device__ __forceinline__ ChunkCodes(float (&v)[kOfLane], const QuantizedLayout& layout) {
    // --8<-- [start:group]
    // By its bits: as integers they have the order of the magnitudes, NaN above all.
    unsigned amax = 0;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) amax = max(amax, __float_as_uint(v[i]) & 0x7fffffffu);
    for (int distance = 1; distance < layout.group / kOfLane; distance *= 2) {
      amax = max(amax, __shfl_xor_sync(kAllLanes, amax, distance));
    }
    scale = scale_of(amax, layout);
    divide(v, scale, layout.scale_format);
    four = encode(v, layout.values);
    // --8<-- [end:group]
  }

  // Into a row: chunk c of it.
  __device__ __forceinline__ void store(
      uint8_t* data, uint8_t* scales, const QuantizedLayout& layout, int lane, int c = 0) const {
    if (layout.values == ValueFormat::kE4M3) {
      *reinterpret_cast<uint32_t*>(data + c * kChunk + kOfLane * lane) = four;
    } else {
      *reinterpret_cast<uint16_t*>(data + (c * kChunk + kOfLane * lane) / 2) = uint16_t(four);
    }
    const int number = c * kChunk + kOfLane * lane, group = number >> group_shift(layout);
    if ((number & (layout.group - 1)) != 0) return;
    if (layout.scale_format == ScaleFormat::kFloat32) {
      *reinterpret_cast<uint32_t*>(scales + 4 * group) = scale.code;
    } else {
      scales[group] = uint8_t(scale.code);
    }
  }
};
