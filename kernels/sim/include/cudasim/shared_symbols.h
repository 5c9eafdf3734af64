// How a checked build declares a __shared__ variable, so that its exact bounds are known.
//
// The ABI tag becomes a part of the symbol's name, by which the variable is found in the library's symbol table. The
// gap beside it belongs to nobody: without it an overrun would land, unnoticed, in a neighbouring variable. 128 bytes,
// as a line of 32 banks is wide.
//
// Clang keeps the order of declarations, so that the last variable would lack a gap behind it: there all of them have a
// section, and another one follows it. GCC reverses the order; it ignores sections of static variables of templates.
#pragma once

#define CUDASIM_SHARED_TAG "cudasim_shared"
#define CUDASIM_GAP_TAG "cudasim_gap"

#define CUDASIM_JOIN_(a, b) a##b
#define CUDASIM_JOIN(a, b) CUDASIM_JOIN_(a, b)

#if defined(__clang__) && defined(__ELF__)
#define CUDASIM_SECTION(name) section(name),
#else
#define CUDASIM_SECTION(name)
#endif

#define CUDASIM_GAP(name, where) \
  static __attribute__((used, aligned(128), CUDASIM_SECTION(where) abi_tag(CUDASIM_GAP_TAG))) char name[128]

#define CUDASIM_CHECKED_SHARED                                            \
  CUDASIM_GAP(CUDASIM_JOIN(cudasim_gap_, __COUNTER__), "cudasim_shared"); \
  static __attribute__((aligned(128), CUDASIM_SECTION("cudasim_shared") abi_tag(CUDASIM_SHARED_TAG)))

#if defined(__clang__) && defined(__ELF__) && CUDASIM_CHECKED
// The linker keeps the order in which it finds sections: this one is the first, and that one follows it.
CUDASIM_GAP(cudasim_gap_first, "cudasim_shared");
CUDASIM_GAP(cudasim_gap_last, "cudasim_shared_end");
#endif
