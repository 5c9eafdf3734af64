// Runs the checks that the other files define: as a program, or as a library's function.
#include "check.h"

// The failures of that check, or, for null, of all; -1 if there is none of that name.
extern "C" __attribute__((visibility("default"))) int run_checks(const char* name) {
  int run = 0;
  failures() = 0;
  for (const Check& check : all_checks()) {
    if (name && std::strcmp(name, check.name) != 0) continue;
    const std::string thrown = report_of(check.run);
    if (!thrown.empty()) ++failures(), std::printf("%s: %s\n", check.name, thrown.c_str());
    ++run;
  }
  std::printf("%d checks, %d failures\n", run, failures());
  std::fflush(stdout);
  return run ? failures() : -1;
}

int main(int count, char** names) {
  return run_checks(count > 1 ? names[1] : nullptr) != 0;
}
