/* What vLLM's CPU worker computes by this project's rules, each in one pass over its numbers.
 *
 * PyTorch takes 30 to 50 microseconds for a product of few rows with a matrix of rank 8, whose arithmetic takes two.
 * Compiled by art_kernels.py for the machine that it runs on. bf16 numbers are held as their 16 bits. A function with the
 * argument FP32 takes the other numbers as floats where it is 1, as processors without bf16 have them, and as bf16 where
 * it is 0. What it does with a row is inlined with both constants, so that each has loops of its own.
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

#define INLINE static inline __attribute__((always_inline))

INLINE float get(const void *numbers, int64_t at, int FP32) {
    return FP32 ? ((const float *)numbers)[at] : wide(((const bf16 *)numbers)[at]);
}

INLINE void put(void *numbers, int64_t at, float number, int FP32) {
    if (FP32) ((float *)numbers)[at] = number;
    else ((bf16 *)numbers)[at] = narrow(number);
}

/* The address of a number. */
INLINE const void *at(const void *numbers, int64_t index, int FP32) {
    return (const char *)numbers + index * (FP32 ? sizeof(float) : sizeof(bf16));
}

/* A number as PyTorch has it between two operators. */
INLINE float rounded(float number, int FP32) { return FP32 ? number : wide(narrow(number)); }

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

static inline float dot_fp32(const float *a, const float *b, int64_t length) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t at = 0; at < length; at++) sum += a[at] * b[at];
    return sum;
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

/* A row of art_lora_linear. down: (C*R, I). up: (R, O). */
INLINE void lora_row(void *y, const void *x, const void *down, const void *up, const int64_t *ends, int64_t I, int64_t O,
                     int64_t C, int64_t R, float scale, const int FP32) {
    float low[C * R];
    for (int64_t r = 0; r < C * R; r++) {
        const void *matrix = at(down, r * I, FP32);
        low[r] = FP32 ? dot_fp32(x, matrix, I) : rounded(dot(x, matrix, I), 0);
    }
    int64_t o = 0;
    for (int64_t c = 0; c < C; c++) {
        while (o < ends[c]) {
            const void *strip = at(up, o, FP32);
            int64_t width = ends[c] - o < STRIP ? ends[c] - o : STRIP;
            float sum[STRIP] = {0};
            for (int64_t r = 0; r < R; r++) {
                float factor = low[c * R + r];
                if (width == STRIP) {
#pragma omp simd
                    for (int64_t k = 0; k < STRIP; k++) sum[k] += factor * get(strip, r * O + k, FP32);
                } else {
                    for (int64_t k = 0; k < width; k++) sum[k] += factor * get(strip, r * O + k, FP32);
                }
            }
            for (int64_t k = 0; k < width; k++) put(y, o + k, get(y, o + k, FP32) + scale * sum[k], FP32);
            o += width;
        }
    }
}

/* y += scale * (x A^T) B^T, each row with the matrices of its own slot; rows of slot -1 stay as they are.
 *
 * down: (S, C*R, I), the slices' A. up: (S, R, O), the slices' B^T side by side. ends: (C), where each slice ends.
 */
void art_lora_linear(void *y, int64_t y_stride, const void *x, int64_t x_stride, const void *down, const void *up,
                     const int64_t *slots, const int64_t *ends, int64_t N, int64_t I, int64_t O, int64_t C, int64_t R,
                     float scale, int FP32) {
#pragma omp parallel for schedule(static) if (N > 1)
    for (int64_t n = 0; n < N; n++) {
        if (slots[n] < 0) continue;
        void *target = (void *)at(y, n * y_stride, FP32);
        const void *row = at(x, n * x_stride, FP32);
        const void *a = at(down, slots[n] * C * R * I, FP32), *b = at(up, slots[n] * R * O, FP32);
        if (FP32) lora_row(target, row, a, b, ends, I, O, C, R, scale, 1);
        else lora_row(target, row, a, b, ends, I, O, C, R, scale, 0);
    }
}

/* A row of art_add_norm. */
INLINE void add_norm_row(void *y, float *sum, const void *x, const void *residual, int64_t narrow_residual,
                         const void *weight, int64_t E, float epsilon, const int FP32) {
    float squares = 0;
    if (narrow_residual) {
        for (int64_t e = 0; e < E; e++) sum[e] = get(x, e, FP32) + get(residual, e, 0);
    } else {
        for (int64_t e = 0; e < E; e++) sum[e] = get(x, e, FP32) + get(residual, e, 1);
    }
#pragma omp simd reduction(+ : squares)
    for (int64_t e = 0; e < E; e++) squares += sum[e] * sum[e];
    float factor = 1.0f / sqrtf(squares / (float)E + epsilon);
    for (int64_t e = 0; e < E; e++) put(y, e, sum[e] * factor * get(weight, e, FP32), FP32);
}

/* RMSNorm of x + residual (y), and that sum in fp32 (sum). The residual is fp32, or bf16 where narrow_residual. */
void art_add_norm(void *y, float *sum, const void *x, const void *residual, int64_t narrow_residual, const void *weight,
                  int64_t N, int64_t E, float epsilon, int FP32) {
#pragma omp parallel for schedule(static) if (N > 1)
    for (int64_t n = 0; n < N; n++) {
        void *target = (void *)at(y, n * E, FP32);
        const void *row = at(x, n * E, FP32), *before = at(residual, n * E, !narrow_residual);
        if (FP32) add_norm_row(target, sum + n * E, row, before, narrow_residual, weight, E, epsilon, 1);
        else add_norm_row(target, sum + n * E, row, before, narrow_residual, weight, E, epsilon, 0);
    }
}

/* A row of art_silu_mul. */
INLINE void silu_mul_row(void *y, const void *gate, const void *up, int64_t D, const int FP32) {
#pragma omp simd
    for (int64_t d = 0; d < D; d++) {
        float g = get(gate, d, FP32);
        put(y, d, rounded(g / (1.0f + exponential(-g)), FP32) * get(up, d, FP32), FP32);
    }
}

/* y = silu(gate) * up, where x: (N, 2 D) has the gate's half and then the other. Rounded after each of both, as PyTorch
 * does it. */
void art_silu_mul(void *y, const void *x, int64_t N, int64_t D, int FP32) {
#pragma omp parallel for schedule(static) if (N > 1)
    for (int64_t n = 0; n < N; n++) {
        void *target = (void *)at(y, n * D, FP32);
        const void *gate = at(x, n * 2 * D, FP32), *up = at(x, (n * 2 + 1) * D, FP32);
        if (FP32) silu_mul_row(target, gate, up, D, 1);
        else silu_mul_row(target, gate, up, D, 0);
    }
}

/* Rotary position embedding of HEADS heads in place. x: (HEADS, HEAD), of which the first 2 * HALF of every head are
 * rotated, h with h + HALF. Rounded after every product and sum, as PyTorch does it. */
INLINE void rotate_row(void *x, const void *cosine, const void *sine, int64_t heads, int64_t HEAD, int64_t HALF,
                       const int FP32) {
    for (int64_t head = 0; head < heads; head++) {
        void *one = (void *)at(x, head * HEAD, FP32), *two = (void *)at(one, HALF, FP32);
#pragma omp simd
        for (int64_t h = 0; h < HALF; h++) {
            float a = get(one, h, FP32), b = get(two, h, FP32);
            float c = get(cosine, h, FP32), s = get(sine, h, FP32);
            put(one, h, rounded(a * c, FP32) - rounded(b * s, FP32), FP32);
            put(two, h, rounded(b * c, FP32) + rounded(a * s, FP32), FP32);
        }
    }
}

/* The same of the queries and the keys of N tokens. cos_sin: (positions, 2 * HALF), the cosines and then the sines. */
void art_rotate(void *q, int64_t q_stride, int64_t q_heads, void *k, int64_t k_stride, int64_t k_heads,
                const void *cos_sin, const int64_t *positions, int64_t N, int64_t HEAD, int64_t HALF, int FP32) {
#pragma omp parallel for schedule(static) if (N > 1)
    for (int64_t n = 0; n < N; n++) {
        const void *cosine = at(cos_sin, positions[n] * 2 * HALF, FP32), *sine = at(cosine, HALF, FP32);
        void *query = (void *)at(q, n * q_stride, FP32), *key = k ? (void *)at(k, n * k_stride, FP32) : 0;
        if (FP32) rotate_row(query, cosine, sine, q_heads, HEAD, HALF, 1);
        else rotate_row(query, cosine, sine, q_heads, HEAD, HALF, 0);
        if (!k) continue;
        if (FP32) rotate_row(key, cosine, sine, k_heads, HEAD, HALF, 1);
        else rotate_row(key, cosine, sine, k_heads, HEAD, HALF, 0);
    }
}

typedef float lanes __attribute__((vector_size(32)));
typedef uint32_t lane_bits __attribute__((vector_size(32)));
typedef bf16 half_lanes __attribute__((vector_size(16)));

INLINE lanes wide_lanes(const bf16 *numbers) {
    half_lanes half;
    memcpy(&half, numbers, sizeof half);
    return (lanes)(__builtin_convertvector(half, lane_bits) << 16);
}

enum { BLOCK = 16, TALL = 6 }; /* columns and rows whose sums stay in registers: 12 of 16, beside what is multiplied */

/* ROWS rows of y = x W^T, of one block of columns. packed: (I, 16). */
INLINE void linear_block(float *y, int64_t O, const float *x, int64_t x_stride, const bf16 *packed, int64_t I,
                         const int ROWS) {
    lanes sums[TALL][2] = {{{0}}};
    for (int64_t i = 0; i < I; i++) {
        lanes left = wide_lanes(packed + i * BLOCK), right = wide_lanes(packed + i * BLOCK + BLOCK / 2);
#pragma GCC unroll 6
        for (int row = 0; row < ROWS; row++) {
            float number = x[row * x_stride + i];
            sums[row][0] += number * left;
            sums[row][1] += number * right;
        }
    }
#pragma GCC unroll 6
    for (int row = 0; row < ROWS; row++) memcpy(y + row * O, sums[row], sizeof sums[row]);
}

/* y = x W^T in fp32, for a few rows, for which libraries are slow. packed: (O / 16, I, 16). Weights in bf16 are half as
 * much to read, which is what a single row waits for. */
void art_linear(float *y, const float *x, int64_t x_stride, const bf16 *packed, int64_t N, int64_t I, int64_t O) {
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < O / BLOCK; block++) {
        const bf16 *weights = packed + block * BLOCK * I;
        for (int64_t top = 0; top < N; top += TALL) {
            float *target = y + top * O + block * BLOCK;
            const float *rows = x + top * x_stride;
            switch (N - top) {
            case 1: linear_block(target, O, rows, x_stride, weights, I, 1); break;
            case 2: linear_block(target, O, rows, x_stride, weights, I, 2); break;
            case 3: linear_block(target, O, rows, x_stride, weights, I, 3); break;
            case 4: linear_block(target, O, rows, x_stride, weights, I, 4); break;
            case 5: linear_block(target, O, rows, x_stride, weights, I, 5); break;
            default: linear_block(target, O, rows, x_stride, weights, I, TALL);
            }
        }
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
