/* Loops around products of what weights read: their sums over the data, and rounding weights by
 * them. Each has a numpy twin that gives the same bits: sums of whole numbers are exact in any order,
 * other operations stand in the order of the twin, with no fused multiply-add.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define TO_WHOLE 6755399441055744.0 /* 1.5 * 2^52: adding it rounds halves to even, as rint does */

#define TINY 2.2250738585072014e-308 /* the least normal number */
#define LIMIT 2896.0 /* Products of words, and of one with a difference of two, are below 2^24. */

/* out = rint(x / unit) within LIMIT, unit of each channel; x, out: (outer, channels, inner).
 * Returns whether every x is a number.
 */
int32_t qs_steps(const float *x, int64_t outer, int64_t channels, int64_t inner,
                 const double *unit, int16_t *out) {
    int numbers = 1;
    for (int64_t row = 0; row < outer * channels; row += inner > 1 ? 1 : channels) {
        int64_t count = inner > 1 ? inner : channels, shared = inner > 1 ? 0 : 1;
        const float *from = x + row * inner;
        const double *by = unit + (inner > 1 ? row % channels : 0);
        int16_t *to = out + row * inner;
        int all = 1;
        for (int64_t i = 0; i < count; i++) {
            double steps = (double)from[i] / by[shared * i] + TO_WHOLE - TO_WHOLE;
            all &= from[i] == from[i];
            steps = steps < LIMIT ? steps : LIMIT;
            to[i] = (int16_t)(steps > -LIMIT ? steps : -LIMIT);
        }
        numbers &= all;
    }
    return numbers;
}

/* Words of a register, and sums of the products of pairs of them. KEEP holds words in their register:
 * compilers would read them once more for each product.
 */
#if defined(__AVX512VNNI__) && defined(__AVX512F__)
#define BYTES 64
#define PAIRS(sum, x, y) (Sums)_mm512_dpwssd_epi32((__m512i)(sum), (__m512i)(x), (__m512i)(y))
#define KEEP(words) __asm__("" : "+v"(words))
#elif defined(__AVX2__)
#define BYTES 32
#define PAIRS(sum, x, y) ((sum) + (Sums)_mm256_madd_epi16((__m256i)(x), (__m256i)(y)))
#elif defined(__SSE2__)
#define BYTES 16
#define PAIRS(sum, x, y) ((sum) + (Sums)_mm_madd_epi16((__m128i)(x), (__m128i)(y)))
#else
#define BYTES 16
#define PAIRS(sum, x, y) pairs(sum, x, y)
#endif
typedef int16_t Words __attribute__((vector_size(BYTES), aligned(2), may_alias));
typedef int32_t Sums __attribute__((vector_size(BYTES)));
typedef int64_t Wide __attribute__((vector_size(BYTES)));
typedef uint64_t Unsigned __attribute__((vector_size(BYTES)));
#define WORDS (BYTES / 2)
#define TOGETHER (64 * WORDS) /* positions whose sums stay below 2^31 in every lane */
#define TILE 4
#define NEAR 64 /* taps whose words stay in the second cache */
#define PADDED 32 /* positions are padded to so many: the largest WORDS */

#ifndef KEEP
#define KEEP(words) (void)(words)
#endif

#ifndef __SSE2__
static inline Sums pairs(Sums sum, Words x, Words y) {
    for (int i = 0; i < WORDS; i++) sum[i / 2] += x[i] * y[i];
    return sum;
}
#endif

/* found[k] += the sum of the lanes of sums[k]. */
static inline void add_lanes(const Sums sums[TILE * TILE], int64_t found[TILE * TILE]) {
#if BYTES == 64
    __m512i some[TILE * TILE]; /* a vector of 8 lanes, then halves of two, quarters of four, all */
    for (int k = 0; k < TILE * TILE; k++) {
        __m512i even = _mm512_srai_epi64(_mm512_slli_epi64((__m512i)sums[k], 32), 32);
        some[k] = _mm512_add_epi64(even, _mm512_srai_epi64((__m512i)sums[k], 32));
    }
    for (int k = 0; k < TILE * TILE / 2; k++)
        some[k] = _mm512_add_epi64(_mm512_unpacklo_epi64(some[2 * k], some[2 * k + 1]),
                                   _mm512_unpackhi_epi64(some[2 * k], some[2 * k + 1]));
    for (int left = TILE * TILE / 4; left >= TILE * TILE / 8; left /= 2)
        for (int k = 0; k < left; k++)
            some[k] = _mm512_add_epi64(_mm512_shuffle_i64x2(some[2 * k], some[2 * k + 1], 0x88),
                                       _mm512_shuffle_i64x2(some[2 * k], some[2 * k + 1], 0xdd));
    for (int k = 0; k < TILE * TILE; k += 8)
        _mm512_storeu_si512(found + k, _mm512_add_epi64(_mm512_loadu_si512(found + k), some[k / 8]));
#else
    for (int k = 0; k < TILE * TILE; k++) {
        Wide both = (Wide)sums[k], even = (Wide)((Unsigned)both << 32) >> 32;
        both = (both >> 32) + even;
        for (int i = 0; i < BYTES / 8; i++) found[k] += both[i];
    }
#endif
}

/* found[k][l] = sum of a[k][p] * b[l][p], p < count, TILE rows each. */
static inline void tile(const int16_t *a, const int16_t *b, int64_t length, int64_t count,
                        int64_t found[TILE * TILE]) {
    for (int64_t first = 0; first < count; first += TOGETHER) {
        int64_t end = count - first < TOGETHER ? count : first + TOGETHER;
        Sums sums[TILE * TILE] = {0};
        for (int64_t p = first; p < end; p += WORDS) {
            Words y[TILE];
            for (int l = 0; l < TILE; l++) {
                y[l] = *(const Words *)(b + l * length + p);
                KEEP(y[l]);
            }
            for (int k = 0; k < TILE; k++) {
                Words x = *(const Words *)(a + k * length + p);
                for (int l = 0; l < TILE; l++)
                    sums[TILE * k + l] = PAIRS(sums[TILE * k + l], x, y[l]);
            }
        }
        add_lanes(sums, found);
    }
}

/* The same, added to the matrix (taps, taps) at k and l. */
static inline void add_tile(const int16_t *a, const int16_t *b, int64_t length, int64_t count,
                            int64_t *matrix, int64_t taps, int64_t k, int64_t l) {
    int64_t found[TILE * TILE] = {0};
    tile(a + k * length, b + l * length, length, count, found);
    int64_t rows = taps - k < TILE ? taps - k : TILE, columns = taps - l < TILE ? taps - l : TILE;
    matrix += k * taps + l;
    for (int64_t i = 0; i < rows; i++, matrix += taps)
        if (columns == TILE)
            for (int64_t j = 0; j < TILE; j++) matrix[j] += found[TILE * i + j];
        else
            for (int64_t j = 0; j < columns; j++) matrix[j] += found[TILE * i + j];
}

/* products[g][k][l] += the sum over positions of what taps k and l read, at least where l <= k,
 * crossed[g][k][l] of what k reads more of the other data and l reads, read[g][k] and more[g][k] of
 * either. one, other: the data of each run; ends: of its positions; reads: (taps of a channel, all
 * positions), places in the first channel, -1 for a zero; stride: from one channel to the next;
 * columns: memory for either, (taps padded to TILE, positions padded to PADDED and as much again).
 */
void qs_products(const int16_t *const *one, const int16_t *const *other, const int64_t *ends,
                 const int32_t *reads, int64_t runs, int64_t stride, int64_t own, int64_t groups,
                 int64_t taps, int16_t *columns, int64_t *products, int64_t *crossed, int64_t *read,
                 int64_t *more) {
    int64_t lines = (taps + TILE - 1) / TILE * TILE, count = ends[runs - 1], size = taps * taps;
    int64_t positions = (count + PADDED - 1) / PADDED * PADDED;
    int64_t length = positions + PADDED; /* no power of 2, by which lines would share a cache set */
    int16_t *held = columns, *apart = columns + lines * length;
    memset(columns, 0, 2 * sizeof(int16_t) * (size_t)(lines * length));
    for (int64_t g = 0; g < groups; g++, products += size, crossed += size) {
        for (int64_t k = 0; k < taps; k++) {
            int64_t row = g * taps + k, from = row / own * stride, of_one = 0, of_other = 0;
            const int32_t *at = reads + row % own * count;
            for (int64_t run = 0, p = 0; run < runs; run++)
                for (const int16_t *x = one[run] + from, *y = other[run] + from; p < ends[run]; p++) {
                    int32_t value = at[p] < 0 ? 0 : x[at[p]];
                    int32_t rest = at[p] < 0 ? 0 : y[at[p]] - value;
                    held[k * length + p] = (int16_t)value;
                    apart[k * length + p] = (int16_t)rest;
                    of_one += value;
                    of_other += rest;
                }
            *read++ += of_one;
            *more++ += of_other;
        }
        for (int64_t block = 0; block < taps; block += NEAR)
            for (int64_t k = 0; k < taps; k += TILE)
                for (int64_t l = block; l < taps && l < block + NEAR; l += TILE) {
                    add_tile(apart, held, length, positions, crossed, taps, k, l);
                    if (l <= k) add_tile(held, held, length, positions, products, taps, k, l);
                }
    }
}

/* out[g][k][l] = the mean product of two taps over both parts of the data, in real units. Deviations
 * from the mean of different taps are multiplied by what both parts have in common. one, other:
 * (groups, taps, taps), symmetric ones lower triangles; left, right: (2, groups, taps), the sums of
 * the taps; work: 3 taps. Deviations are differences of integers, exact below 2^16 positions: data
 * that do not vary have none.
 */
void qs_shrunk(const int64_t *one, const int64_t *other, const int64_t *left, const int64_t *right,
               const int64_t *counts, const double *unit, int64_t groups, int64_t taps,
               int32_t symmetric, int32_t centred, double *work, float *out) {
    int64_t all = groups * taps, number[3] = {counts[0], counts[1], counts[0] + counts[1]};
    double inverse[3], square[3];
    for (int part = 0; part < 3; part++) {
        inverse[part] = 1.0 / (double)(number[part] > 1 ? number[part] : 1);
        square[part] = inverse[part] * inverse[part];
    }
    for (int64_t g = 0; g < groups; g++, left += taps, right += taps, unit += taps) {
        double common = 0.0, most = 0.0;
        for (int64_t k = 0; k < taps; k++, one += taps, other += taps) {
            int64_t end = symmetric ? k + 1 : taps;
            int64_t of_a = left[k], of_b = left[all + k], of_both = of_a + of_b;
            double *a = work, *b = work + taps, *both = work + 2 * taps, by = unit[k];
            float *to = out + k * taps;
            for (int64_t l = 0; l < end; l++) {
                int64_t to_a = right[l], to_b = right[all + l], read = one[l] + other[l];
                a[l] = (double)(one[l] * number[0] - of_a * to_a) * square[0] * by * unit[l];
                b[l] = (double)(other[l] * number[1] - of_b * to_b) * square[1] * by * unit[l];
                both[l] = (double)(read * number[2] - of_both * (to_a + to_b)) * square[2] * by *
                          unit[l];
                to[l] = (float)both[l];
            }
            a[k] = both[k] = 0.0;
            for (int64_t l = 0; l < end; l++) {
                common += a[l] * b[l];
                most += both[l] * both[l];
            }
        }
        double share = counts[1] ? common / (most > TINY ? most : TINY) : 1.0;
        share = share < 1.0 ? share > 0.0 ? share : 0.0 : 1.0;
        for (int64_t l = 0; l < taps; l++)
            work[l] = (double)(right[l] + right[all + l]) * inverse[2] * unit[l];
        for (int64_t first = 0; first < taps; first += NEAR)
            for (int64_t k = 0; k < taps; k++) {
                double of_both =
                    centred ? 0.0 : (double)(left[k] + left[all + k]) * inverse[2] * unit[k];
                int64_t end = symmetric && k < first + NEAR ? k + 1 : first + NEAR;
                for (int64_t l = first; l < end && l < taps; l++) {
                    double value = (double)out[k * taps + l] * (k == l ? 1.0 : share);
                    float whole = (float)(value + of_both * work[l]);
                    out[k * taps + l] = whole;
                    if (symmetric) out[l * taps + k] = whole;
                }
            }
        out += taps * taps;
    }
}

/* out = what x >= 0 loses on the grid 0 .. levels times the scale of its row, halves going up. */
void qs_grid_errors(const float *restrict x, int64_t rows, int64_t columns, const float *scale,
                    float levels, float *restrict out) {
    for (int64_t row = 0; row < rows; row++, x += columns, out += columns) {
        float unit = scale[row];
        for (int64_t k = 0; k < columns; k++) {
            float level = floorf(x[k] / unit + 0.5f);
            level = level < levels ? level : levels;
            out[k] = level * unit - x[k];
        }
    }
}

/* The nearest whole number from low to high, halves away from zero. */
static inline double on_grid(double value, double low, double high) {
    double whole = trunc(value + copysign(0.5, value));
    whole = whole > low ? whole : low;
    return whole < high ? whole : high;
}

/* Round a block of columns from the last to the first; those before make up for what was rounded.
 * values, free, found: (groups, rows, width); factor: (groups, width, width), lower triangular.
 */
void qs_round_columns(const double *values, double *free, const double *factor, int64_t groups,
                      int64_t rows, int64_t width, double low, double high, double *found) {
    for (int64_t row = 0; row < groups * rows; row++, values += width, free += width, found += width)
        for (int64_t k = width - 1; k >= 0; k--) {
            const double *line = factor + (row / rows * width + k) * width;
            found[k] = on_grid(free[k], low, high);
            double error = values[k] - found[k];
            for (int64_t j = 0; j < k; j++) free[j] += error * line[j];
        }
}
