// As much of AMD's hls_vector.h as UG1399 describes and the machine's source uses: a compiler then sees its __VITIS_HLS__ branch.
#ifndef VITIS_STUB_HLS_VECTOR_H
#define VITIS_STUB_HLS_VECTOR_H
#include <cstddef>

namespace hls {
template <class T, size_t N>
struct vector {
    T lane[N];
    vector() = default;
    vector(const T &value) {
        for (T &one : lane) one = value;
    }
    T &operator[](size_t i) { return lane[i]; }
    const T &operator[](size_t i) const { return lane[i]; }
#define LANEWISE(sign)                                              \
    friend vector operator sign(vector one, const vector &other) {  \
        for (size_t i = 0; i < N; i++) one[i] = one[i] sign other[i]; \
        return one;                                                 \
    }
    LANEWISE(+) LANEWISE(-) LANEWISE(*) LANEWISE(/)
#undef LANEWISE
};
}  // namespace hls
#endif
