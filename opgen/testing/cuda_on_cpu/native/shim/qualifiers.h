// CUDA's keywords as far as they mean something to a host compiler.
#pragma once

#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#ifndef __CUDA_ARCH__
#define __CUDA_ARCH__ 800
#endif

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __launch_bounds__(...)
#define __maxnreg__(count)
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))

// thread_local makes `__shared__ T a[N]` and `extern __shared__ T a[]` legal; the run time finds
// the storage of the library, which holds nothing else. Without __constinit g++ guards variables of
// class types by a flag, which would look like shared memory that is read uninitialised.
#define __shared__ __constinit thread_local

typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;

// Functions of the shim are inlined, so that an access has the line of the kernel that made it.
#define EMU_INLINE static inline __attribute__((always_inline))
// Functions that touch memory on behalf of the emulator, not of the kernel.
#define EMU_UNCHECKED static __attribute__((no_sanitize("thread"), noinline))
#define EMU_RUNTIME extern "C"
