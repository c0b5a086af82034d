// Loads and stores with cache hints, and copies: accesses like others.
#pragma once

EMU_RUNTIME void *emu_memcpy(void *destination, const void *source, size_t bytes);
EMU_RUNTIME void *emu_memset(void *destination, int value, size_t bytes);
#define memcpy emu_memcpy
#define memset emu_memset

#define EMU_LOAD(name)                      \
    template <class T>                      \
    EMU_INLINE T name(const T *place) {     \
        return *place;                      \
    }
EMU_LOAD(__ldg)
EMU_LOAD(__ldca)
EMU_LOAD(__ldcg)
EMU_LOAD(__ldcs)
EMU_LOAD(__ldlu)
EMU_LOAD(__ldcv)

#define EMU_STORE(name)                                   \
    template <class T>                                    \
    EMU_INLINE void name(T *place, emu_same<T> value) {   \
        *place = value;                                   \
    }
EMU_STORE(__stwb)
EMU_STORE(__stcg)
EMU_STORE(__stcs)
EMU_STORE(__stwt)

EMU_INLINE size_t __cvta_generic_to_shared(const void *place) { return size_t(place); }
#define __builtin_assume(condition) ((void)0)
#define __assume(condition) ((void)0)
