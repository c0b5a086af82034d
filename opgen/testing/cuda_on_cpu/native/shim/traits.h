// The few type traits that the shim needs; <type_traits> is a header of the system.
#pragma once

template <class T>
struct emu_type {
    using type = T;
};
// A parameter of this type takes no part in deducing T.
template <class T>
using emu_same = typename emu_type<T>::type;

template <class A, class B>
constexpr bool emu_is_same = false;
template <class A>
constexpr bool emu_is_same<A, A> = true;

template <class T>
struct emu_without_const : emu_type<T> {};
template <class T>
struct emu_without_const<const T> : emu_type<T> {};
template <class T>
struct emu_without_const<volatile T> : emu_type<T> {};
template <class T>
struct emu_without_const<const volatile T> : emu_type<T> {};
template <class T>
using emu_plain = typename emu_without_const<T>::type;

template <class T>
constexpr bool emu_is_const = false;
template <class T>
constexpr bool emu_is_const<const T> = true;

template <class To, class From>
EMU_INLINE To emu_bits(From value) {
    static_assert(sizeof(To) == sizeof(From), "bits of one size");
    To result;
    __builtin_memcpy(&result, &value, sizeof result);
    return result;
}
