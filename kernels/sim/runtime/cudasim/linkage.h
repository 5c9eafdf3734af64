// Attributes of what the checker defines. Several checked libraries, and PyTorch, share one process: no symbol that
// they do not share may leave its library.
#pragma once

// Of an inline function that nobody calls by name: it is emitted all the same, and stays inside the library.
#define CUDASIM_CALLBACK extern "C" __attribute__((used, visibility("hidden"))) inline
// Of an inline function that Python finds by name.
#define CUDASIM_EXPORT extern "C" __attribute__((used, visibility("default"))) inline
// Of what each access runs through.
#define CUDASIM_ALWAYS_INLINE __attribute__((always_inline)) inline
