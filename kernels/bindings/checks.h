// checks.h: what every operator asks of its arguments before it launches. A refusal names the operator and the
// argument, says what it is and what it must be.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include "launchers.h"

namespace qwen {

// A tensor [..., hidden] as rows that lie `stride` elements apart.
struct Rows {
  int64_t rows, hidden, stride;
};

// Refuses a tensor on a GPU for the simulator.
void check_device(Backend backend, const char* op, const char* name, const at::Tensor& t);

// Refuses a dtype that the norm and elementwise operators do not have.
Dtype dtype_of(const char* op, const char* name, const at::Tensor& t);

// Refuses a tensor without a last dimension, with an empty one, with gaps inside a row or with rows at uneven
// distances.
Rows rows_of(const char* op, const char* name, const at::Tensor& t);

// A tensor that is written: its rows must not overlap.
Rows written_rows_of(const char* op, const char* name, const at::Tensor& t);

void check_same(const char* op, const char* name, const at::Tensor& t, const char* like_name, const at::Tensor& like);
void check_weight(const char* op, const at::Tensor& weight, const char* like_name, const at::Tensor& like);
void check_eps(const char* op, double eps);

// One index, int64 or int32, for each row (the first dimension) of `like`. Returns whether they are int64_t.
bool check_indices(
    const char* op, const char* name, const at::Tensor& indices, const char* like_name, const at::Tensor& like);

void check_apart(const char* op, const char* a_name, const at::Tensor& a, const char* b_name, const at::Tensor& b);

// The bytes from the first to the last element of a tensor.
std::size_t span_bytes(const at::Tensor& t);

// PyTorch's current stream on the tensor's device; null for the CPU and the simulator.
cudaStream_t current_stream(const at::Tensor& t);

}  // namespace qwen
