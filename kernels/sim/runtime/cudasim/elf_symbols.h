// The variables of this library: names and exact bounds, from the symbol table of its own file.
//
// Where there is no such table (a stripped library, macOS) the list is empty; the checker then knows of no static
// shared memory, and lets kernels read and write all of the library's data.
#pragma once

#include <cxxabi.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#ifdef __linux__
#include <elf.h>
#include <link.h>
#endif

#include "cudasim/shared_symbols.h"

namespace cudasim {

// Where the dynamic linker has put this library.
struct Image {
  std::string path;
  uintptr_t base = 0;                     // what to add to a symbol's value
  uintptr_t low = 0, high = 0;            // all that is mapped of it
  uintptr_t data_low = 0, data_high = 0;  // of that what may be written
};

struct Variable {
  // kKernel: not shared, but of the kernel's file: a __device__ or __constant__ variable. kGuard: what a compiler keeps
  // beside a static variable, to construct it once.
  enum Owner : uint8_t { kShared, kGap, kKernel, kGuard, kSimulator };
  uintptr_t low = 0, high = 0;
  Owner owner = kKernel;
  std::string symbol;
  std::string name, function;  // of a shared one: "partial", and "void rms_norm<4>(float*)", that declares it
};

#ifdef __linux__

inline int note_image(dl_phdr_info* info, size_t, void* found) {
  auto* image = static_cast<Image*>(found);
  const auto here = reinterpret_cast<uintptr_t>(&note_image);
  Image seen;
  seen.low = seen.data_low = UINTPTR_MAX;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD) continue;
    const uintptr_t low = info->dlpi_addr + segment.p_vaddr, high = low + segment.p_memsz;
    seen.low = std::min(seen.low, low), seen.high = std::max(seen.high, high);
    if (segment.p_flags & PF_W)
      seen.data_low = std::min(seen.data_low, low), seen.data_high = std::max(seen.data_high, high);
  }
  if (here < seen.low || here >= seen.high) return 0;
  const char* name = info->dlpi_name && *info->dlpi_name ? info->dlpi_name : "/proc/self/exe";
  char* whole = realpath(name, nullptr);
  seen.path = whole ? whole : name, seen.base = info->dlpi_addr;
  std::free(whole);
  *image = seen;
  return 1;
}

inline Image find_image() {
  Image image;
  dl_iterate_phdr(note_image, &image);
  return image;
}

inline std::vector<char> bytes_of_file(const std::string& path) {
  std::vector<char> bytes;
  if (FILE* file = std::fopen(path.c_str(), "rb")) {
    std::fseek(file, 0, SEEK_END);
    bytes.resize(size_t(std::max(0l, std::ftell(file))));
    std::rewind(file);
    bytes.resize(std::fread(bytes.data(), 1, bytes.size(), file));
    std::fclose(file);
  }
  return bytes;
}

// f(name, value, size, type) for each symbol of the library's file. A value counts from the image's base, or, for a
// thread_local variable (STT_TLS), from where the library's thread_local variables begin.
template <class F>
inline void each_symbol(const Image& image, F f) {
  const std::vector<char> file = bytes_of_file(image.path);
  if (file.size() < sizeof(ElfW(Ehdr)) || std::memcmp(file.data(), ELFMAG, SELFMAG) != 0) return;
  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(file.data());
  if (header->e_shoff + size_t(header->e_shnum) * sizeof(ElfW(Shdr)) > file.size()) return;
  const auto* sections = reinterpret_cast<const ElfW(Shdr)*>(file.data() + header->e_shoff);
  for (int s = 0; s < header->e_shnum; ++s) {
    if (sections[s].sh_type != SHT_SYMTAB) continue;
    const auto* symbols = reinterpret_cast<const ElfW(Sym)*>(file.data() + sections[s].sh_offset);
    const char* names = file.data() + sections[sections[s].sh_link].sh_offset;
    for (size_t i = 0; i < sections[s].sh_size / sizeof(ElfW(Sym)); ++i) {
      const auto& symbol = symbols[i];
      f(names + symbol.st_name, uintptr_t(symbol.st_value), size_t(symbol.st_size), symbol.st_info & 15);
    }
  }
}

// "void rms_norm<4>(float*)::partial[abi:cudasim_shared]" without the tag.
inline std::string readable(const std::string& symbol) {
  int status = 0;
  char* text = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status);
  std::string whole = text ? text : symbol;
  std::free(text);
  return whole.substr(0, whole.find("[abi:" CUDASIM_SHARED_TAG));
}

inline Variable variable_of(const char* symbol, uintptr_t low, size_t bytes) {
  Variable v;
  v.low = low, v.high = low + bytes, v.symbol = symbol;
  if (std::strncmp(symbol, "_ZGV", 4) == 0) {
    v.owner = Variable::kGuard;
  } else if (std::strstr(symbol, CUDASIM_GAP_TAG)) {
    v.owner = Variable::kGap;
  } else if (std::strstr(symbol, CUDASIM_SHARED_TAG)) {
    v.owner = Variable::kShared;
    const std::string whole = readable(symbol);
    const size_t colons = whole.rfind("::");
    v.name = colons == std::string::npos ? whole : whole.substr(colons + 2);
    v.function = colons == std::string::npos ? "" : whole.substr(0, colons);
  } else if (std::strstr(symbol, "7cudasim")) {  // the namespace, as a symbol spells it
    v.owner = Variable::kSimulator;
  }
  return v;
}

// Sorted by address.
inline std::vector<Variable> find_variables(const Image& image) {
  std::vector<Variable> all;
  each_symbol(image, [&](const char* name, uintptr_t value, size_t bytes, int type) {
    const uintptr_t low = image.base + value;
    if (type != STT_OBJECT || low < image.data_low || low + bytes > image.data_high) return;
    all.push_back(variable_of(name, low, bytes));
  });
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.low < b.low; });
  return all;
}

#else

inline Image find_image() {
  return {};
}
inline std::vector<Variable> find_variables(const Image&) {
  return {};
}

#endif

}  // namespace cudasim
