// What every testbench needs: reproducible random numbers, comparison, and the closing line.
#ifndef BTTLAB_TESTBENCH_CHECK_H
#define BTTLAB_TESTBENCH_CHECK_H

#include <cmath>
#include <cstdio>
#include <vector>

typedef std::vector<double> Vec;

static int passed = 0, failed = 0;

static void check(bool good, const char *name, double value, double limit) {
    good ? passed++ : failed++;
    std::printf("%-6s %-52s %10.2e  (limit %.0e)\n", good ? "ok" : "FAILED", name, value, limit);
}

// |got - want| / |want| in the Frobenius norm; a reference of zeros allows an absolute error of the limit.
static void check_close(const char *name, const Vec &got, const Vec &want, double limit) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < want.size(); i++) {
        difference += (got[i] - want[i]) * (got[i] - want[i]);
        norm += want[i] * want[i];
    }
    const double error = std::sqrt(difference) / (norm > 0 ? std::sqrt(norm) : 1.0);
    check(got.size() == want.size() && error <= limit, name, error, limit);  // NaN fails
}

static int finish() {
    std::printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}

// A linear congruential generator: the same numbers on every machine. In (-scale, scale).
static double random_number(double scale = 1.0) {
    static unsigned long long state = 1;
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return ((state >> 11) / 9007199254740992.0 * 2.0 - 1.0) * scale;
}

static Vec random_vector(size_t size, double scale = 1.0) {
    Vec values(size);
    for (double &value : values) value = static_cast<float>(random_number(scale));
    return values;
}

#endif
