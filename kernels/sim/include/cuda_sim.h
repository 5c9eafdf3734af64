// cuda_sim.h: runs CUDA C++ kernels on a CPU. Kernels include it through cuda_platform.cuh, in place of CUDA's headers.
//
// A CUDA thread is a fiber, a running block an OS thread. kernels/sim/README.md tells what is simulated and what not.
// Compile with -std=c++17 -fno-strict-aliasing -ffp-contract=off, and link with runtime/cudasim/runtime.cpp and
// -pthread.
#pragma once

#include <stdexcept>
#include <string>

#include "cudasim/language.h"
//
#include "cudasim/atomics.h"
#include "cudasim/intrinsics.h"
#include "cudasim/launch.h"
#include "cudasim/memory.h"
#include "cudasim/number_types.h"
#include "cudasim/warp.h"
