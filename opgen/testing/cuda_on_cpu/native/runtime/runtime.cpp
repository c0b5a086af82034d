// The run time of the emulator: runs a CUDA grid on one thread of the host and checks every access.
//
// Kernels are compiled by g++ with -fsanitize=thread; the hooks which that calls are defined here
// instead of by its library (see hooks.h). This file itself is compiled without.
#include "abi.h"
#include "state.h"
#include "fibers.h"
#include "findings.h"
#include "schedule.h"
#include "warp.h"
#include "access.h"
#include "async_copy.h"
#include "hooks.h"
#include "guard.h"
#include "launch.h"
