/* What vLLM's CPU worker computes by this project's rules, each in one pass over its numbers.
 *
 * PyTorch takes 30 to 50 microseconds for a product of few rows with a matrix of rank 8, whose arithmetic takes two.
 * Compiled by art_kernels.py for the machine that it runs on. bf16 numbers are held as their 16 bits.
 * Shapes: N tokens, I in, O out (of all slices), C slices of a fused layer (q, k, v), R rank (of all slots the same),
 * S slots, E hidden size, V vocabulary. All matrices are row-major; strides are counted in numbers.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

typedef uint16_t bf16;

static inline float wide(bf16 number) {
    uint32_t bits = (uint32_t)number << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

/* To the nearest, ties to even, as PyTorch rounds. */
static inline bf16 narrow(float number) {
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (bf16)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

/* e^x, off by two units in the last place of a float at most: 2^n e^r with |r| <= ln(2) / 2. The library's expf is called
 * number by number; this becomes part of a vectorized loop. */
static inline float exponential(float x) {
    x = x > 87.0f ? 87.0f : x < -87.0f ? -87.0f : x;
    float n = rintf(x * 1.44269504f), r = x - n * 0.693145752f - n * 1.42860677e-6f;
    float sum = 1.0f + r * (1.0f + r * (0.5f + r * (0.166666657f + r * (0.0416665822f + r * (0.00833361223f + r * 0.00138925166f)))));
    int32_t bits = ((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return sum * power;
}

static inline float dot(const bf16 *a, const bf16 *b, int64_t length) {
#ifdef __AVX512BF16__
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
    int64_t at = 0;
    for (; at + 64 <= length; at += 64) {
        even = _mm512_dpbf16_ps(even, (__m512bh)_mm512_loadu_si512(a + at), (__m512bh)_mm512_loadu_si512(b + at));
        odd = _mm512_dpbf16_ps(odd, (__m512bh)_mm512_loadu_si512(a + at + 32), (__m512bh)_mm512_loadu_si512(b + at + 32));
    }
    for (; at < length; at += 32) {
        __mmask32 rest = length - at >= 32 ? ~(__mmask32)0 : ((__mmask32)1 << (length - at)) - 1;
        even = _mm512_dpbf16_ps(even, (__m512bh)_mm512_maskz_loadu_epi16(rest, a + at),
                                (__m512bh)_mm512_maskz_loadu_epi16(rest, b + at));
    }
    return _mm512_reduce_add_ps(_mm512_add_ps(even, odd));
#else
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t at = 0; at < length; at++) sum += wide(a[at]) * wide(b[at]);
    return sum;
#endif
}

enum { STRIP = 64 }; /* numbers of y that stay in registers */

/* y += scale * (x A^T) B^T, each row with the matrices of its own slot; rows of slot -1 stay as they are.
 *
 * down: (S, C*R, I), the slices' A. up: (S, R, O), the slices' B^T side by side. ends: (C), where each slice ends.
 */
void art_lora_linear(bf16 *y, int64_t y_stride, const bf16 *x, int64_t x_stride, const bf16 *down, const bf16 *up,
                     const int64_t *slots, const int64_t *ends, int64_t N, int64_t I, int64_t O, int64_t C, int64_t R,
                     float scale) {
#pragma omp parallel for schedule(static) if (N > 1)
    for (int64_t n = 0; n < N; n++) {
        int64_t slot = slots[n];
        if (slot < 0) continue;
        float low[C * R];
        for (int64_t r = 0; r < C * R; r++) low[r] = wide(narrow(dot(x + n * x_stride, down + (slot * C * R + r) * I, I)));
        bf16 *row = y + n * y_stride;
        int64_t o = 0;
        for (int64_t c = 0; c < C; c++) {
            while (o < ends[c]) {
                const bf16 *strip = up + slot * R * O + o;
                int64_t width = ends[c] - o < STRIP ? ends[c] - o : STRIP;
                float sum[STRIP] = {0};
                for (int64_t r = 0; r < R; r++) {
                    float factor = low[c * R + r];
                    if (width == STRIP) {
#pragma omp simd
                        for (int64_t k = 0; k < STRIP; k++) sum[k] += factor * wide(strip[r * O + k]);
                    } else {
                        for (int64_t k = 0; k < width; k++) sum[k] += factor * wide(strip[r * O + k]);
                    }
                }
                for (int64_t k = 0; k < width; k++) row[o + k] = narrow(wide(row[o + k]) + scale * sum[k]);
                o += width;
            }
        }
    }
}

/* RMSNorm of x + residual in bf16 (y), and that sum in fp32 (sum). The residual is fp32, or bf16 where narrow_residual. */
void art_add_norm(bf16 *y, float *sum, const bf16 *x, const void *residual, int64_t narrow_residual,
                  const bf16 *weight, int64_t N, int64_t E, float epsilon) {
#pragma omp parallel for schedule(static) if (N > 1)
    for (int64_t n = 0; n < N; n++) {
        float *total = sum + n * E, squares = 0;
        if (narrow_residual) {
            const bf16 *before = (const bf16 *)residual + n * E;
            for (int64_t e = 0; e < E; e++) total[e] = wide(x[n * E + e]) + wide(before[e]);
        } else {
            const float *before = (const float *)residual + n * E;
            for (int64_t e = 0; e < E; e++) total[e] = wide(x[n * E + e]) + before[e];
        }
#pragma omp simd reduction(+ : squares)
        for (int64_t e = 0; e < E; e++) squares += total[e] * total[e];
        float factor = 1.0f / sqrtf(squares / (float)E + epsilon);
        for (int64_t e = 0; e < E; e++) y[n * E + e] = narrow(total[e] * factor * wide(weight[e]));
    }
}

/* y = silu(gate) * up, where x: (N, 2 D) has the gate's half and then the other. Rounded after each of both, as PyTorch
 * does it in bf16. */
void art_silu_mul(bf16 *y, const bf16 *x, int64_t N, int64_t D) {
#pragma omp parallel for schedule(static) if (N > 1)
    for (int64_t n = 0; n < N; n++) {
        const bf16 *gate = x + n * 2 * D, *up = gate + D;
#pragma omp simd
        for (int64_t d = 0; d < D; d++) {
            float g = wide(gate[d]);
            y[n * D + d] = narrow(wide(narrow(g / (1.0f + exponential(-g)))) * wide(up[d]));
        }
    }
}

/* Rotary position embedding of HEADS heads in place. x: rows of stride numbers, (HEADS, HEAD) each, of which the first
 * 2 * HALF of every head are rotated, h with h + HALF. cos_sin: (positions, 2 * HALF), the cosines and then the sines.
 * Rounded after every product and sum, as PyTorch does it in bf16. */
static void rotate_row(bf16 *x, const bf16 *cos_sin, int64_t heads, int64_t HEAD, int64_t HALF) {
    const bf16 *cosine = cos_sin, *sine = cos_sin + HALF;
    for (int64_t head = 0; head < heads; head++) {
        bf16 *one = x + head * HEAD, *two = one + HALF;
#pragma omp simd
        for (int64_t h = 0; h < HALF; h++) {
            float a = wide(one[h]), b = wide(two[h]), c = wide(cosine[h]), s = wide(sine[h]);
            one[h] = narrow(wide(narrow(a * c)) - wide(narrow(b * s)));
            two[h] = narrow(wide(narrow(b * c)) + wide(narrow(a * s)));
        }
    }
}

/* The same of the queries and the keys of N tokens. */
void art_rotate(bf16 *q, int64_t q_stride, int64_t q_heads, bf16 *k, int64_t k_stride, int64_t k_heads,
                const bf16 *cos_sin, const int64_t *positions, int64_t N, int64_t HEAD, int64_t HALF) {
#pragma omp parallel for schedule(static) if (N > 1)
    for (int64_t n = 0; n < N; n++) {
        const bf16 *angles = cos_sin + positions[n] * 2 * HALF;
        rotate_row(q + n * q_stride, angles, q_heads, HEAD, HALF);
        if (k) rotate_row(k + n * k_stride, angles, k_heads, HEAD, HALF);
    }
}

enum { ROWS = 8, COLUMNS = 32 }; /* of the logits that stay in registers */

/* logits = x W^T in fp32. packed: (V / 32, E / 2, 32, 2): of 32 columns, two numbers of each at a time. E is even. */
void art_head(float *logits, const bf16 *x, const bf16 *packed, int64_t N, int64_t E, int64_t V) {
#ifdef __AVX512BF16__
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < V / COLUMNS; block++) {
        const bf16 *weights = packed + block * COLUMNS * E;
        for (int64_t first = 0; first < N; first += ROWS) {
            __m512 sums[ROWS][2];
            for (int row = 0; row < ROWS; row++) sums[row][0] = sums[row][1] = _mm512_setzero_ps();
            const bf16 *rows[ROWS]; /* of a short last group, the last row again */
            for (int row = 0; row < ROWS; row++) rows[row] = x + (first + row < N ? first + row : N - 1) * E;
            for (int64_t pair = 0; pair < E / 2; pair++) {
                __m512bh left = (__m512bh)_mm512_loadu_si512(weights + pair * COLUMNS * 2);
                __m512bh right = (__m512bh)_mm512_loadu_si512(weights + pair * COLUMNS * 2 + COLUMNS);
#pragma GCC unroll 8
                for (int row = 0; row < ROWS; row++) {
                    int32_t both;
                    memcpy(&both, rows[row] + 2 * pair, sizeof both);
                    __m512bh value = (__m512bh)_mm512_set1_epi32(both);
                    sums[row][0] = _mm512_dpbf16_ps(sums[row][0], left, value);
                    sums[row][1] = _mm512_dpbf16_ps(sums[row][1], right, value);
                }
            }
            for (int row = 0; row < ROWS && first + row < N; row++) {
                _mm512_storeu_ps(logits + (first + row) * V + block * COLUMNS, sums[row][0]);
                _mm512_storeu_ps(logits + (first + row) * V + block * COLUMNS + 16, sums[row][1]);
            }
        }
    }
#endif
}

/* Whether art_head computes: it needs products of bf16 pairs in hardware. */
int art_has_head(void) {
#ifdef __AVX512BF16__
    return 1;
#else
    return 0;
#endif
}
