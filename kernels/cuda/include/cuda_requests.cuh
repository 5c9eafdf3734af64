// What the host asks of the CUDA runtime before a launch, with an answer or a sentence. For nvcc only.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace cuda_platform {

inline std::string text(dim3 v) {
  return "(" + std::to_string(v.x) + "," + std::to_string(v.y) + "," + std::to_string(v.z) + ")";
}

// `what()` is asked for its text only when something failed: a launch must cost the host little.
template <class What>
void check(cudaError_t error, What what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // a refused launch is not to be found again by whoever asks next
  throw std::runtime_error(what() + " failed: " + cudaGetErrorString(error) + ".");
}

inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  const auto what = [] { return std::string("Asking for an attribute of the GPU"); };
  check(cudaGetDevice(&device), what);
  check(cudaDeviceGetAttribute(&value, attribute, device), what);
  return value;
}

// Clusters and dependent launches came with compute capability 9.0.
inline bool is_hopper_or_later() {
  return device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9;
}

// More than every GPU grants unasked: shared memory above 48 KB, of which a kernel's variables may take a part, and
// clusters of more than 8 blocks.
template <class What>
void allow(const void* kernel, size_t shared_bytes, int cluster, What what) {
  if (shared_bytes > 32 * 1024)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes)), what);
  if (cluster > 8) check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), what);
}

}  // namespace cuda_platform
