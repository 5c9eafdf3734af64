// Runs the checks that the other files define.
#include "check.h"

int main(int count, char** names) {
  int run = 0;
  for (const Check& check : all_checks()) {
    if (count > 1 && std::strcmp(names[1], check.name) != 0) continue;
    check.run();
    ++run;
  }
  std::printf("%d checks, %d failures\n", run, failures());
  return run == 0 || failures() != 0;
}
