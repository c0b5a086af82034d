// Atomic operations: checked as one access, done at once, since one thread runs at a time.
#pragma once

EMU_RUNTIME void emu_atomic(void *cell, int bytes);

template <class T, class Change>
EMU_UNCHECKED T emu_change(T *cell, Change change) {
    const T old = *cell;
    *cell = change(old);
    return old;
}
template <class T, class Change>
EMU_INLINE T emu_atomically(T *cell, Change change) {
    emu_atomic((void *)cell, int(sizeof(T)));
    return emu_change(cell, change);
}

template <class T>
EMU_INLINE T atomicAdd(T *cell, emu_same<T> value) {
    return emu_atomically(cell, [=](T old) { return T(old + value); });
}
template <class T>
EMU_INLINE T atomicSub(T *cell, emu_same<T> value) {
    return emu_atomically(cell, [=](T old) { return T(old - value); });
}
template <class T>
EMU_INLINE T atomicMax(T *cell, emu_same<T> value) {
    return emu_atomically(cell, [=](T old) { return old > value ? old : value; });
}
template <class T>
EMU_INLINE T atomicMin(T *cell, emu_same<T> value) {
    return emu_atomically(cell, [=](T old) { return old < value ? old : value; });
}
template <class T>
EMU_INLINE T atomicAnd(T *cell, emu_same<T> value) {
    return emu_atomically(cell, [=](T old) { return T(old & value); });
}
template <class T>
EMU_INLINE T atomicOr(T *cell, emu_same<T> value) {
    return emu_atomically(cell, [=](T old) { return T(old | value); });
}
template <class T>
EMU_INLINE T atomicXor(T *cell, emu_same<T> value) {
    return emu_atomically(cell, [=](T old) { return T(old ^ value); });
}
template <class T>
EMU_INLINE T atomicExch(T *cell, emu_same<T> value) {
    return emu_atomically(cell, [=](T) { return value; });
}
template <class T>
EMU_INLINE T atomicCAS(T *cell, emu_same<T> expected, emu_same<T> value) {
    return emu_atomically(cell, [=](T old) { return old == expected ? value : old; });
}
EMU_INLINE unsigned int atomicInc(unsigned int *cell, unsigned int limit) {
    return emu_atomically(cell, [=](unsigned int old) { return old >= limit ? 0u : old + 1; });
}
EMU_INLINE unsigned int atomicDec(unsigned int *cell, unsigned int limit) {
    return emu_atomically(
        cell, [=](unsigned int old) { return old == 0 || old > limit ? limit : old - 1; });
}
