// The transcendental functions of functions.h against the C library's in double precision, over the ranges they serve.
#include "check.h"
#include "functions.h"

static double relative(double got, double want) { return std::fabs(got - want) / std::fabs(want); }
static double absolute(double got, double want) { return std::fabs(got - want); }

static void sweep(const char *name, float function(float), double exact(double), double measure(double, double), double low,
                  double high, double limit) {
    double worst = 0;
    const int points = 2000003;
    for (int i = 0; i <= points; i++) {
        const float x = static_cast<float>(low + (high - low) * i / points);
        const double error = measure(function(x), exact(x));
        if (!(error <= worst)) worst = error;  // NaN stays
    }
    check(worst <= limit, name, worst, limit);
}

static double exact_normal(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
static double exact_density(double x) { return std::exp(-0.5 * x * x) / std::sqrt(2 * std::acos(-1.0)); }
static double exact_exponential(double x) { return std::exp(x); }
static double exact_logarithm(double x) { return std::log(x); }
static double exact_tanh(double x) { return std::tanh(x); }

int main() {
    sweep("exponential, relative, [-87, 88]", exponential, exact_exponential, relative, -87, 88, 2e-7);
    sweep("logarithm, absolute, [1e-3, 1]", logarithm, exact_logarithm, absolute, 1e-3, 1, 2e-7 * 3);
    sweep("logarithm, absolute, [1, 1000]", logarithm, exact_logarithm, absolute, 1, 1000, 2e-7 * 3);
    sweep("tanh, absolute, [-20, 20]", hyperbolic_tangent, exact_tanh, absolute, -20, 20, 2e-7);
    sweep("normal distribution, absolute, [-10, 10]", normal_distribution, exact_normal, absolute, -10, 10, 1e-7);
    sweep("normal density, absolute, [-10, 10]", normal_density, exact_density, absolute, -10, 10, 1e-7);

    const float infinity = std::exp2(128.0f), nan = infinity - infinity;
    check(is_finite(3e38f) && is_finite(0.0f) && !is_finite(infinity) && !is_finite(-infinity) && !is_finite(nan),
          "is_finite knows numbers from infinities and NaN", 0, 0);
    check(exponential(-1e30f) > 0.0f && is_finite(exponential(1e30f)), "exponential is clamped", 0, 0);
    return finish();
}
