// The simulator's runtime: all of it that does not depend on a kernel. Each library of kernels is linked with a copy.
#include "cudasim/kernel_calls.h"
#include "cudasim/team.h"
#if CUDASIM_CHECKED
#include "cudasim/access.h"
#endif
