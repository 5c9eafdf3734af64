// Attributes of the checker's own code. A checked build compiles everything with -fsanitize=thread; the functions that
// the compiler then calls must not be instrumented themselves, and no symbol of theirs may leave the library: several
// checked libraries, and PyTorch, share one process.
#pragma once

#include "cudasim/build.h"

#ifdef __has_attribute
#if __has_attribute(disable_sanitizer_instrumentation)  // clang: else it reports functions' entries and exits even so
#define CUDASIM_UNSEEN_TOO __attribute__((disable_sanitizer_instrumentation))
#endif
#endif
#ifndef CUDASIM_UNSEEN_TOO
#define CUDASIM_UNSEEN_TOO
#endif

#ifdef __clang__
#define CUDASIM_UNSEEN __attribute__((no_sanitize("thread"))) CUDASIM_UNSEEN_TOO
#else
#define CUDASIM_UNSEEN __attribute__((no_sanitize_thread))
#endif

// Of an inline function that nobody calls by name: it is emitted all the same, and stays inside the library.
#define CUDASIM_CALLBACK extern "C" __attribute__((used, visibility("hidden"))) CUDASIM_UNSEEN inline
// Of an inline function that Python finds by name.
#define CUDASIM_EXPORT extern "C" __attribute__((used, visibility("default"))) CUDASIM_UNSEEN inline
// Of what each access runs through: with -Og nothing else is inlined.
#define CUDASIM_ALWAYS_INLINE __attribute__((always_inline)) inline
