// hls::vector for a native compiler: what the emulated U50 is built with where Vitis HLS brings its own <hls_vector.h>.
// Only what the kernels use: element access and element-wise arithmetic. Each element is computed on its own, so the bits
// do not depend on how wide the host's vector registers are.
#ifndef BTTLAB_EMULATION_HLS_VECTOR_H
#define BTTLAB_EMULATION_HLS_VECTOR_H

#include <cstddef>

namespace hls {

#if defined(__AVX512F__)
constexpr std::size_t REGISTER_BYTES = 64;
#else
constexpr std::size_t REGISTER_BYTES = 32;
#endif

template <typename T, std::size_t N>
class alignas(sizeof(T) * N) vector {
    typedef T Register __attribute__((vector_size(REGISTER_BYTES)));
    static constexpr std::size_t REGISTERS = sizeof(T) * N / REGISTER_BYTES;
    Register part[REGISTERS];

  public:
    vector() = default;
    // Copied register by register: left to itself the compiler moves 16 bytes at a time, and the loads that follow stall.
    vector(const vector &other) { *this = other; }
    vector &operator=(const vector &other) {
        for (std::size_t i = 0; i < REGISTERS; i++) part[i] = other.part[i];
        return *this;
    }
    vector(T value) {
        for (std::size_t i = 0; i < REGISTERS; i++) part[i] = value - Register{};  // a broadcast: x - 0 is x, and -0 too
    }

    T &operator[](std::size_t i) { return reinterpret_cast<T *>(part)[i]; }
    const T &operator[](std::size_t i) const { return reinterpret_cast<const T *>(part)[i]; }

    vector &operator+=(const vector &other) {
        for (std::size_t i = 0; i < REGISTERS; i++) part[i] += other.part[i];
        return *this;
    }
    vector &operator-=(const vector &other) {
        for (std::size_t i = 0; i < REGISTERS; i++) part[i] -= other.part[i];
        return *this;
    }
    vector &operator*=(const vector &other) {
        for (std::size_t i = 0; i < REGISTERS; i++) part[i] *= other.part[i];
        return *this;
    }
    vector &operator/=(const vector &other) {
        for (std::size_t i = 0; i < REGISTERS; i++) part[i] /= other.part[i];
        return *this;
    }

    friend vector operator+(const vector &a, const vector &b) { return vector(a) += b; }
    friend vector operator-(const vector &a, const vector &b) { return vector(a) -= b; }
    friend vector operator*(const vector &a, const vector &b) { return vector(a) *= b; }
    friend vector operator/(const vector &a, const vector &b) { return vector(a) /= b; }
};

// Sums of the elements of 16 vectors of 16 floats, each by the tree that word.h spells out for synthesis: element i meets
// i + 8, then i + 4, i + 2, i + 1. Eight trees share a register, so that no addition is scalar.
inline vector<float, 16> sums_of(const vector<float, 16> *row) {
    typedef float Eight __attribute__((vector_size(32)));
    Eight half[16], sum[2];
    for (int i = 0; i < 16; i++) {
        const Eight *value = reinterpret_cast<const Eight *>(&row[i]);
        half[i] = value[0] + value[1];
    }
    for (int group = 0; group < 2; group++) {
        Eight quarter[4], pair[2];
        for (int i = 0; i < 4; i++) {
            const Eight a = half[8 * group + i], b = half[8 * group + i + 4];
            quarter[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11) +
                         __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
        }
        for (int i = 0; i < 2; i++) {
            const Eight a = quarter[2 * i], b = quarter[2 * i + 1];
            pair[i] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13) +
                      __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
        }
        sum[group] = __builtin_shufflevector(pair[0], pair[1], 0, 2, 8, 10, 4, 6, 12, 14) +
                     __builtin_shufflevector(pair[0], pair[1], 1, 3, 9, 11, 5, 7, 13, 15);
    }
    vector<float, 16> result;
    Eight *value = reinterpret_cast<Eight *>(&result);
    value[0] = sum[0];
    value[1] = sum[1];
    return result;
}

}  // namespace hls

#endif
