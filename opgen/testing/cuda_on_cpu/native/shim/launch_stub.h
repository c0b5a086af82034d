// What is appended for every kernel: its parameters, told to Python, and a call with them unpacked.
// Types come from the kernel itself, so a wrong argument list is found before it runs.
#pragma once

struct emu_parameter {
    int kind;  // 0 a value, 1 a pointer, 2 a pointer to const
    int code;  // type of the value or of what is pointed to, as numpy.dtype takes it; V: another
    int bytes;  // of that type; 0: void
};

template <class T>
constexpr int emu_bytes = int(sizeof(T));
template <>
constexpr int emu_bytes<void> = 0;

// Types of fp16 and bf16 specialise this.
template <class T>
constexpr int emu_code_of_class = 'V';

template <class T>
constexpr int emu_code() {
    if (emu_is_same<T, float>) return 'f';
    if (emu_is_same<T, double>) return 'd';
    if (emu_is_same<T, bool>) return '?';
    if (emu_is_same<T, signed char> || emu_is_same<T, char>) return 'b';
    if (emu_is_same<T, unsigned char>) return 'B';
    if (emu_is_same<T, short>) return 'h';
    if (emu_is_same<T, unsigned short>) return 'H';
    if (emu_is_same<T, int>) return 'i';
    if (emu_is_same<T, unsigned int>) return 'I';
    if (emu_is_same<T, long> || emu_is_same<T, long long>) return 'q';
    if (emu_is_same<T, unsigned long> || emu_is_same<T, unsigned long long>) return 'Q';
    return emu_code_of_class<T>;
}

template <class T>
struct emu_parameter_of {
    static constexpr emu_parameter value{0, emu_code<emu_plain<T>>(), emu_bytes<emu_plain<T>>};
};
template <class T>
struct emu_parameter_of<T *> {
    static constexpr emu_parameter value{
        emu_is_const<T> ? 2 : 1, emu_code<emu_plain<T>>(), emu_bytes<emu_plain<T>>};
};

template <size_t... indices>
struct emu_indices {};
template <size_t count, size_t... indices>
struct emu_count_to : emu_count_to<count - 1, count - 1, indices...> {};
template <size_t... indices>
struct emu_count_to<0, indices...> {
    using type = emu_indices<indices...>;
};

template <class T>
struct emu_kernel;
template <class... Parameters>
struct emu_kernel<void (*)(Parameters...)> {
    static constexpr int count = int(sizeof...(Parameters));
    static constexpr emu_parameter parameters[count + 1] = {
        emu_parameter_of<emu_plain<Parameters>>::value..., {0, 0, 0}};

    template <size_t... indices>
    EMU_UNCHECKED void unpack(
        void (*kernel)(Parameters...), void **arguments, emu_indices<indices...>) {
        kernel(*(emu_plain<Parameters> *)arguments[indices]...);
    }
    EMU_UNCHECKED void call(void (*kernel)(Parameters...), void **arguments) {
        unpack(kernel, arguments, typename emu_count_to<sizeof...(Parameters)>::type{});
    }
};

#define EMU_EXPORT extern "C" __attribute__((visibility("default"), no_sanitize("thread")))

#define EMU_STUB(number, ...)                                                        \
    EMU_EXPORT void emu_entry_##number(void **arguments) {                           \
        emu_kernel<decltype(&__VA_ARGS__)>::call(&__VA_ARGS__, arguments);           \
    }                                                                                \
    EMU_EXPORT int emu_count_##number() {                                            \
        return emu_kernel<decltype(&__VA_ARGS__)>::count;                            \
    }                                                                                \
    EMU_EXPORT const emu_parameter *emu_parameters_##number() {                      \
        return emu_kernel<decltype(&__VA_ARGS__)>::parameters;                       \
    }
