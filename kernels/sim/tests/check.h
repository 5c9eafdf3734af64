// The little that a test program of the simulator needs: CHECK(name) { ... EXPECT(condition); ... } in any file, and
// `program name` runs that check. Without a name it runs all.
#pragma once

#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "cuda_platform.cuh"

constexpr unsigned kFullMask = 0xffffffffu;

struct Check {
  const char* name;
  void (*run)();
};

inline std::vector<Check>& all_checks() {
  static std::vector<Check> checks;
  return checks;
}

inline int& failures() {
  static int count = 0;
  return count;
}

struct AddCheck {
  AddCheck(const char* name, void (*run)()) { all_checks().push_back({name, run}); }
};

#define CHECK(name)                                      \
  static void check_##name();                            \
  static const AddCheck add_##name(#name, check_##name); \
  static void check_##name()

#define EXPECT(condition)                                                  \
  do {                                                                     \
    if (!(condition)) {                                                    \
      ++failures();                                                        \
      std::printf("%s:%d: expected %s\n", __FILE__, __LINE__, #condition); \
    }                                                                      \
  } while (0)

// The sentence that a launch ends with; empty if it does not.
template <class Launch>
std::string report_of(Launch launch) {
  try {
    launch();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

inline void expect_part(const std::string& report, const std::string& part, const char* file, int line) {
  if (report.find(part) != std::string::npos) return;
  ++failures();
  std::printf("%s:%d: expected \"%s\" in the report:\n%s\n", file, line, part.c_str(), report.c_str());
}
#define EXPECT_PART(report, part) expect_part(report, part, __FILE__, __LINE__)
