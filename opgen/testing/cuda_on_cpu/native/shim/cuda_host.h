// Lets g++ compile unmodified CUDA C++ kernel source for the host.
//
// Included before the text of the kernel. As under NVRTC there are no headers of the system: what a
// kernel may use is declared here, or in the headers of ../include.
#pragma once

// For host twins of inline PTX: #ifdef OPGEN_HOST_EMU ... #else asm(...) #endif
#define OPGEN_HOST_EMU 1

#include "qualifiers.h"
#include "traits.h"
#include "vector_types.h"
#include "threads.h"
#include "warp.h"
#include "atomics.h"
#include "memory.h"
#include "mathematics.h"
#include "integers.h"
#include "async_copy.h"
#include "launch_stub.h"
