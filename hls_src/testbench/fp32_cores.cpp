// The FP32 cores against the host's arithmetic with subnormals flushed to zero: every pair of hard operands, then random ones,
// a new pair each cycle. A NaN is a NaN. Arguments: how many random pairs, seed.
#include <xmmintrin.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "Vfp32_all.h"

static float number(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

static uint32_t bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

static uint32_t flushed(uint32_t a) { return a & 0x7f800000 ? a : a & 0x80000000; }

struct Expected {
    uint32_t a, b, value[7];
};

static Expected expect(uint32_t a_bits, uint32_t b_bits) {
    const volatile float a = number(a_bits), b = number(b_bits);
    const float x = number(flushed(a_bits)), y = number(flushed(b_bits));
    const bool fits = x >= -2147483648.0f && x < 2147483648.0f;
    const uint32_t relation = std::isunordered(x, y) ? 8 : x == y ? 2 : x < y ? 1 : 4;
    return {a_bits, b_bits,
            {bits(a + b), bits(a * b), bits(a / b), bits(_mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(a)))), bits(std::floor(x)),
             fits ? static_cast<uint32_t>(static_cast<int32_t>(x)) : 0x80000000u, relation}};
}

static bool same(uint32_t found, uint32_t wanted, bool is_float) {
    return found == wanted || (is_float && std::isnan(number(found)) && std::isnan(number(wanted)));
}

int main(int, char **arguments) {
    _mm_setcsr(_mm_getcsr() | 0x8040);  // flush to zero, denormals are zeros
    std::vector<uint32_t> hard;
    // 20000400 x 1ffff800 lies below the smallest normal number and rounds up to it; 00800000 x 3f7fffff stays below.
    for (uint32_t magnitude : {0x20000400u, 0x1ffff800u,
                               0x00000000u, 0x00000001u, 0x007fffffu, 0x00800000u, 0x00800001u, 0x00ffffffu, 0x01000000u,
                               0x33800000u, 0x34000000u, 0x3effffffu, 0x3f000000u, 0x3f7fffffu, 0x3f800000u, 0x3f800001u,
                               0x3fbfffffu, 0x3fc00000u, 0x3fffffffu, 0x40000000u, 0x40400000u, 0x4affffffu, 0x4b000000u,
                               0x4b000001u, 0x4b7fffffu, 0x4b800000u, 0x4effffffu, 0x4f000000u, 0x4f800000u, 0x5f000000u,
                               0x7effffffu, 0x7f000000u, 0x7f7fffffu, 0x7f800000u, 0x7f800001u, 0x7fc00000u, 0x7fffffffu}) {
        hard.push_back(magnitude);
        hard.push_back(magnitude | 0x80000000u);
    }
    const long count = std::atol(arguments[1]);
    std::mt19937 random(static_cast<unsigned>(std::atol(arguments[2])));
    constexpr int AHEAD = 32;
    // Latencies by core: as scheduled, one, many.
    const int latency[3][7] = {{5, 4, 16, 16, 2, 4, 2}, {1, 1, 1, 1, 1, 1, 1}, {31, 31, 31, 31, 31, 31, 31}};
    const char *names[7] = {"+", "*", "/", "sqrt", "floor", "to int", "compare"};
    std::vector<Expected> past(AHEAD);
    Vfp32_all unit;
    const long pairs = static_cast<long>(hard.size() * hard.size());
    for (long n = 0; n < pairs + count + AHEAD; n++) {
        uint32_t a = random(), b = random();
        if (n < pairs) {
            a = hard[n / hard.size()], b = hard[n % hard.size()];
        } else {
            // Few bits of the significand make halfway cases; near exponents cancellation; sums of exponents tiny results.
            const uint32_t few = 0xffffffffu << random() % 24;
            if (n % 2) a &= few, b &= few | 0xff800000u;
            if (n % 3 == 0) b = (b & 0x807fffff) | ((((a >> 23) + random() % 5 - 2) & 255) << 23);
            if (n % 7 == 0) b = (b & 0x807fffff) | (((128 - (a >> 23 & 255) + random() % 5) & 255) << 23);
            if (n % 11 == 0) a = hard[random() % hard.size()];
        }
        past[n % AHEAD] = expect(a, b);
        unit.a = a, unit.b = b;
        unit.clock = 0, unit.eval();
        unit.clock = 1, unit.eval();
        const uint32_t *results[3] = {unit.scheduled.m_storage, unit.of_one.m_storage, unit.of_many.m_storage};
        for (int which = 0; which < 3; which++) {
            for (int core = 0; core < 7; core++) {
                const long of = n - latency[which][core] + 1;
                if (of < 0) continue;
                const Expected &expected = past[of % AHEAD];
                const uint32_t found = results[which][core];
                if (!same(found, expected.value[core], core < 5)) {
                    std::printf("%08x %s %08x with %d cycles: %08x, not %08x\n", expected.a, names[core], expected.b,
                                latency[which][core], found, expected.value[core]);
                    return 1;
                }
            }
        }
    }
    std::printf("%ld pairs\n", pairs + count);
}
