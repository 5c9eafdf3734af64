// How this file is being compiled: which variant of the simulator, which compiler, which processor.
#pragma once

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "The CUDA simulator switches fibers by hand and knows x86-64 and AArch64; port fiber.h of its runtime."
#endif

#ifdef __has_feature
#define CUDASIM_HAS_FEATURE(x) __has_feature(x)
#else
#define CUDASIM_HAS_FEATURE(x) 0
#endif

// checked: kernels are compiled with -fsanitize=thread, but linked to our own callbacks (runtime/cudasim/access.h), not
// to ThreadSanitizer.
#ifndef CUDASIM_CHECKED
#define CUDASIM_CHECKED 0
#endif

#if defined(__SANITIZE_ADDRESS__) || CUDASIM_HAS_FEATURE(address_sanitizer)
#define CUDASIM_ASAN 1
#else
#define CUDASIM_ASAN 0
#endif

#if !CUDASIM_CHECKED && (defined(__SANITIZE_THREAD__) || CUDASIM_HAS_FEATURE(thread_sanitizer))
#define CUDASIM_TSAN 1
#else
#define CUDASIM_TSAN 0
#endif

// One OS thread runs all blocks where shared variables are plain statics: AddressSanitizer guards no thread_local, and
// the checker wants to know their addresses.
#define CUDASIM_ONE_OS_THREAD (CUDASIM_ASAN || CUDASIM_CHECKED)

// A function of the simulator that no tool instruments and no compiler moves code across.
#ifdef __clang__
#if CUDASIM_TSAN || CUDASIM_CHECKED  // else clang reports the function's entry and exit even so
#define CUDASIM_PLAIN __attribute__((noinline, no_sanitize("thread", "coverage"), disable_sanitizer_instrumentation))
#else
#define CUDASIM_PLAIN __attribute__((noinline, no_sanitize("coverage")))
#endif
#else
#define CUDASIM_PLAIN __attribute__((noinline, no_sanitize_thread, no_sanitize_coverage))
#endif

// A switch of stacks: what a tool must not see it must not find inlined either.
#if CUDASIM_ASAN || CUDASIM_TSAN || CUDASIM_CHECKED
#define CUDASIM_SWITCH CUDASIM_PLAIN
#else
#define CUDASIM_SWITCH
#endif

// Of atomic functions: the checker takes their return address for the kernel's place, and instruments nothing in them.
#if CUDASIM_CHECKED
#define CUDASIM_ATOMIC CUDASIM_PLAIN
#else
#define CUDASIM_ATOMIC
#endif
