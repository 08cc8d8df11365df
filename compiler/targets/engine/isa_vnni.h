/* Primitives of the integer engine for AVX-512 with VNNI (F, BW, DQ, VL, VNNI).
 *
 * A vector is sixteen int32. One dot step multiplies four unsigned bytes of the activations with
 * four signed bytes of the weights and adds the four products to an int32; vpdpbusd does not
 * saturate. Activations are read as they are stored: 8-bit integers counted from their lowest
 * value ("carrier bytes"), so an int8 x is the byte x + 128.
 */
#ifndef QK_ISA_H
#define QK_ISA_H

#ifdef QK_SCALAR_INTRINSICS
#include "scalar_intrinsics.h" /* the same functions in plain C, for machines without AVX-512 */
#else
#include <immintrin.h>
#endif
#include <stdint.h>
#include <string.h>

#ifndef QK_NAME
#define QK_NAME "vnni"
#endif
#define QK_KU 4          /* reduced elements of one dot step */
#define QK_WIDEN 0       /* activations are read where they are */
#define QK_ACT_SHIFT 0   /* what a dot step takes away from a carrier byte */
#define QK_WEIGHT_BYTES 1
#define QK_LANES 16      /* 64-bit addends: even lanes of 16, then odd lanes */
#define QK_NV 4          /* widest panel, in vectors */
#define QK_ROWS(nv) ((nv) == 4 ? 6 : 8)
#define QK_MAX_ROWS 8
#define QK_REALS 1       /* float32 products that are rounded once */
#define QK_PAIR_PIXELS 4 /* of a depthwise convolution, two output rows together */
#define QK_FOUR_PIXELS 4 /* three or four output rows together */
#define QK_LANES_16 4    /* lanes of 16 bytes of a register */

typedef __m512i qk_vec;
typedef __m512i qk_weight;
typedef __m512i qk_spread;
typedef uint8_t qk_act;

static inline qk_vec qk_load(const int32_t *p) { return _mm512_loadu_si512(p); }
static inline void qk_store(int32_t *p, qk_vec v) { _mm512_storeu_si512(p, v); }
static inline qk_vec qk_all(int32_t x) { return _mm512_set1_epi32(x); }
static inline qk_vec qk_add(qk_vec a, qk_vec b) { return _mm512_add_epi32(a, b); }
static inline qk_vec qk_sub(qk_vec a, qk_vec b) { return _mm512_sub_epi32(a, b); }
static inline qk_vec qk_mul(qk_vec a, qk_vec b) { return _mm512_mullo_epi32(a, b); }
static inline qk_vec qk_min(qk_vec a, qk_vec b) { return _mm512_min_epi32(a, b); }
static inline qk_vec qk_max(qk_vec a, qk_vec b) { return _mm512_max_epi32(a, b); }

static inline qk_vec qk_and(qk_vec a, qk_vec b) { return _mm512_and_si512(a, b); }

#ifndef QK_SCALAR_INTRINSICS
#define QK_ENTRIES(name, type) /* gathers take longer */                                                    \
    static inline __m128i name##_of(const type *t, const int32_t *at, int32_t last)                         \
    {                                                                                                       \
        return _mm_setr_epi32(t[at[0] & last], t[at[1] & last], t[at[2] & last], t[at[3] & last]);          \
    }                                                                                                       \
    static inline qk_vec name(const uint8_t *table, const int32_t *at, int32_t last)                        \
    {                                                                                                       \
        const type *t = (const type *)table;                                                                \
        const __m256i low = _mm256_setr_m128i(name##_of(t, at, last), name##_of(t, at + 4, last));          \
        const __m256i high = _mm256_setr_m128i(name##_of(t, at + 8, last), name##_of(t, at + 12, last));    \
        return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);                                    \
    }
QK_ENTRIES(qk_entries_16, int16_t)
QK_ENTRIES(qk_entries_32, int32_t)
#endif

static inline qk_weight qk_load_weight(const void *p) { return _mm512_loadu_si512(p); }

static inline qk_spread qk_spread4(const void *p) /* QK_KU activations, in every lane */
{
    int32_t four;
    memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
}

static inline qk_spread qk_load_taps(const void *p) { return _mm512_loadu_si512(p); }

static inline qk_vec qk_dot(qk_vec acc, qk_spread a, qk_weight w)
{
    return _mm512_dpbusd_epi32(acc, a, w);
}

/* Two dot steps by weights of 4 bits. */
#define QK_NIBBLES 65536
static inline qk_vec qk_dot_nibbles(qk_vec acc, qk_spread a, qk_spread b, const void *p)
{
    const __m512i w = _mm512_loadu_si512(p), last = _mm512_set1_epi8(15);
    acc = _mm512_dpbusd_epi32(acc, a, _mm512_and_si512(w, last));
    return _mm512_dpbusd_epi32(acc, b, _mm512_and_si512(_mm512_srli_epi64(w, 4), last));
}

/* Sixteen columns of up to four rows of bytes, the rows of a column side by side: 64 bytes. */
static inline void qk_interleave(void *to, const uint8_t *const rows[4])
{
    const __m512i lanes = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i bytes = _mm512_set4_epi32(0x0f0b0703, 0x0e0a0602, 0x0d090501, 0x0c080400);
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)rows[0]));
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)rows[1]), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)rows[2]), 2);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)rows[3]), 3);
    v = _mm512_permutexvar_epi32(lanes, v);
    _mm512_storeu_si512(to, _mm512_shuffle_epi8(v, bytes));
}

/* Two int16 of every channel, their products by two int16 weights. */
static inline qk_vec qk_dot_pairs(qk_vec acc, qk_spread a, qk_weight w)
{
    return _mm512_dpwssd_epi32(acc, a, w);
}
#define QK_PAIRS 1
static inline qk_weight qk_load_weight_pairs(const void *p)
{
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));
}
#define qk_spread_pair qk_spread4
#ifdef QK_AMX /* the low bytes and the high bytes of 64 int16 */
static inline void qk_split_words(uint8_t *low, uint8_t *high, const uint8_t *from)
{
    for (int i = 0; i < 2; i++, low += 32, high += 32, from += 64) {
        const __m512i x = _mm512_loadu_si512(from);
        _mm256_storeu_si256((__m256i *)low, _mm512_cvtepi16_epi8(x));
        _mm256_storeu_si256((__m256i *)high, _mm512_cvtepi16_epi8(_mm512_srli_epi16(x, 8)));
    }
}
#endif
#define qk_dot_spread_pair qk_dot_pairs
static inline void qk_interleave_pairs(void *to, const uint8_t *const *rows)
{
    const __m512i low = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)rows[0]));
    const __m512i high = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)rows[1]));
    const __m512i lower = _mm512_and_si512(low, _mm512_set1_epi32(0xffff));
    _mm512_storeu_si512(to, _mm512_xor_si512(lower, _mm512_sll_epi32(high, _mm_cvtsi32_si128(16))));
}

/* Columns of four rows of bytes, `pixel` bytes apart, `step` bytes apart where they are written: the
 * rows of a channel side by side, each lane by itself. `shared` places, 1, 2 or 4, fill the lanes. */
static inline __m512i qk_load_lanes(const uint8_t *p, const int shared, const int64_t *ahead)
{
    if (shared == 1)
        return _mm512_loadu_si512(p);
    if (shared == 2)
        return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(p + ahead[0]))),
                                  _mm256_loadu_si256((const __m256i *)(p + ahead[1])), 1);
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(p + ahead[0])));
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(p + ahead[1])), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(p + ahead[2])), 2);
    return _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(p + ahead[3])), 3);
}
static inline __attribute__((always_inline)) void qk_interleave_shared(
    uint8_t *to, int64_t step, int64_t columns, const uint8_t *const rows[4], int64_t pixel, const int shared,
    const int64_t *ahead)
{
    for (int64_t x = 0, at = 0; x < columns; x++, at += pixel, to += step) {
        const __m512i a = qk_load_lanes(rows[0] + at, shared, ahead), b = qk_load_lanes(rows[1] + at, shared, ahead);
        const __m512i c = qk_load_lanes(rows[2] + at, shared, ahead), d = qk_load_lanes(rows[3] + at, shared, ahead);
        const __m512i low = _mm512_unpacklo_epi8(a, b), high = _mm512_unpackhi_epi8(a, b);
        const __m512i next = _mm512_unpacklo_epi8(c, d), last = _mm512_unpackhi_epi8(c, d);
        _mm512_storeu_si512(to, _mm512_unpacklo_epi16(low, next));
        _mm512_storeu_si512(to + 64, _mm512_unpackhi_epi16(low, next));
        _mm512_storeu_si512(to + 128, _mm512_unpacklo_epi16(high, last));
        _mm512_storeu_si512(to + 192, _mm512_unpackhi_epi16(high, last));
    }
}
static inline void qk_interleave_lanes(uint8_t *to, int64_t step, int64_t columns, const uint8_t *const rows[4],
                                       int64_t pixel, int shared, const int64_t *ahead)
{
    if (shared == 1)
        qk_interleave_shared(to, step, columns, rows, pixel, 1, ahead);
    else if (shared == 2)
        qk_interleave_shared(to, step, columns, rows, pixel, 2, ahead);
    else
        qk_interleave_shared(to, step, columns, rows, pixel, 4, ahead);
}

/* The same of two rows of int16: sixteen channels of a place fill two lanes. */
static inline __m512i qk_load_pair_lanes(const uint8_t *p, const int shared, const int half, const int64_t *ahead)
{
    if (shared < 4)
        return _mm512_loadu_si512(p + (shared == 1 ? 64 * half : ahead[half]));
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(p + ahead[2 * half]))),
                              _mm256_loadu_si256((const __m256i *)(p + ahead[2 * half + 1])), 1);
}
static inline __attribute__((always_inline)) void qk_interleave_shared_pairs(
    uint8_t *to, int64_t step, int64_t columns, const uint8_t *const *rows, int64_t pixel, const int shared,
    const int64_t *ahead)
{
    for (int64_t x = 0, at = 0; x < columns; x++, at += pixel, to += step) {
        const __m512i a0 = qk_load_pair_lanes(rows[0] + at, shared, 0, ahead);
        const __m512i a1 = qk_load_pair_lanes(rows[0] + at, shared, 1, ahead);
        const __m512i b0 = qk_load_pair_lanes(rows[1] + at, shared, 0, ahead);
        const __m512i b1 = qk_load_pair_lanes(rows[1] + at, shared, 1, ahead);
        const __m512i a = _mm512_shuffle_i32x4(a0, a1, 0x88), next = _mm512_shuffle_i32x4(a0, a1, 0xdd);
        const __m512i b = _mm512_shuffle_i32x4(b0, b1, 0x88), last = _mm512_shuffle_i32x4(b0, b1, 0xdd);
        _mm512_storeu_si512(to, _mm512_unpacklo_epi16(a, b));
        _mm512_storeu_si512(to + 64, _mm512_unpackhi_epi16(a, b));
        _mm512_storeu_si512(to + 128, _mm512_unpacklo_epi16(next, last));
        _mm512_storeu_si512(to + 192, _mm512_unpackhi_epi16(next, last));
    }
}
static inline void qk_interleave_pair_lanes(uint8_t *to, int64_t step, int64_t columns, const uint8_t *const *rows,
                                            int64_t pixel, int shared, const int64_t *ahead)
{
    if (shared == 1)
        qk_interleave_shared_pairs(to, step, columns, rows, pixel, 1, ahead);
    else if (shared == 2)
        qk_interleave_shared_pairs(to, step, columns, rows, pixel, 2, ahead);
    else
        qk_interleave_shared_pairs(to, step, columns, rows, pixel, 4, ahead);
}

/* A fixed-point factor per lane: (x * multiplier + addend) >> (32 + shift). */
typedef struct {
    __m512i even, odd, add_even, add_odd, shift;
} qk_factor;

static inline qk_factor qk_load_factor(const int32_t *mult, const int64_t *add, const int32_t *shift)
{
    qk_factor f;
    f.even = _mm512_loadu_si512(mult);
    f.odd = _mm512_srli_epi64(f.even, 32);
    f.add_even = _mm512_loadu_si512(add);
    f.add_odd = _mm512_loadu_si512(add + 8);
    f.shift = _mm512_loadu_si512(shift);
    return f;
}

static inline qk_vec qk_scale(qk_vec x, const qk_factor *f)
{
    __m512i even = _mm512_add_epi64(_mm512_mul_epi32(x, f->even), f->add_even);
    __m512i odd = _mm512_add_epi64(_mm512_mul_epi32(_mm512_srli_epi64(x, 32), f->odd), f->add_odd);
    __m512i high = _mm512_mask_shuffle_epi32(odd, 0x5555, even, _MM_PERM_DDBB);
    return _mm512_srav_epi32(high, f->shift);
}

/* x times a float32 a lane, rounded once to the nearest integer, plus QK_REAL_BITS - less. */
typedef __m512 qk_real;
static inline qk_real qk_load_real(const void *p) { return _mm512_loadu_ps(p); }
static inline qk_vec qk_times(qk_vec x, qk_real factor, qk_vec less)
{
    const __m512 sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(x), factor, _mm512_set1_ps(QK_REAL_ONE));
    return _mm512_sub_epi32(_mm512_castps_si512(sum), less);
}

static inline qk_vec qk_shift_left(qk_vec x, int bits) { return _mm512_sll_epi32(x, _mm_cvtsi32_si128(bits)); }
static inline qk_vec qk_shift_right(qk_vec x, qk_vec bits) { return _mm512_srav_epi32(x, bits); }

static inline qk_vec qk_load_u8(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}
static inline qk_vec qk_load_s16(const void *p)
{
    return _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)p));
}

/* The first n lanes; values are within the range of the type. */
static inline void qk_store_u8(uint8_t *p, qk_vec v, int n)
{
    if (n == 16)
        _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(v));
    else
        _mm_mask_storeu_epi8(p, (__mmask16)((1u << n) - 1), _mm512_cvtepi32_epi8(v));
}
/* Bounds of bytes, and four rows of sixteen values, saturated to bytes and clipped. */
typedef struct {
    __m512i low, high;
} qk_bounds;
static inline qk_bounds qk_byte_bounds(int low, int high)
{
    qk_bounds b = {_mm512_set1_epi8((char)low), _mm512_set1_epi8((char)high)};
    return b;
}
static inline void qk_store_part(uint8_t *p, __m128i bytes, int n)
{
    if (n == 16)
        _mm_storeu_si128((__m128i *)p, bytes);
    else
        _mm_mask_storeu_epi8(p, (__mmask16)((1u << n) - 1), bytes);
}
static inline __m512i qk_pack_four(qk_vec x0, qk_vec x1, qk_vec x2, qk_vec x3, qk_bounds bounds)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i v = _mm512_packus_epi16(_mm512_packs_epi32(x0, x1), _mm512_packs_epi32(x2, x3));
    return _mm512_permutexvar_epi32(order, _mm512_min_epu8(_mm512_max_epu8(v, bounds.low), bounds.high));
}
static inline void qk_store_rows(uint8_t *const *out, int64_t offset, qk_vec x0, qk_vec x1, qk_vec x2, qk_vec x3,
                                 qk_bounds bounds, int n)
{
    const __m512i v = qk_pack_four(x0, x1, x2, x3, bounds);
    qk_store_part(out[0] + offset, _mm512_castsi512_si128(v), n);
    qk_store_part(out[1] + offset, _mm512_extracti32x4_epi32(v, 1), n);
    qk_store_part(out[2] + offset, _mm512_extracti32x4_epi32(v, 2), n);
    qk_store_part(out[3] + offset, _mm512_extracti32x4_epi32(v, 3), n);
}
/* QK_PACKED vectors of one row, of two or of four: nv of each row. */
#define QK_PACKED 4
#ifdef QK_SCALAR_INTRINSICS
#define QK_HOLD_VECTOR(x) (void)0
#else
#define QK_HOLD_VECTOR(x) __asm__("" : "+v"(x)) /* in a register */
#endif
static inline __attribute__((always_inline)) void qk_store_bytes(
    const int nv, uint8_t *p0, uint8_t *p1, uint8_t *p2, uint8_t *p3, qk_vec x0, qk_vec x1, qk_vec x2, qk_vec x3,
    qk_bounds bounds)
{
    const __m512i v = qk_pack_four(x0, x1, x2, x3, bounds);
    if (nv == 1) {
        _mm_storeu_si128((__m128i *)p0, _mm512_castsi512_si128(v));
        _mm_storeu_si128((__m128i *)p1, _mm512_extracti32x4_epi32(v, 1));
        _mm_storeu_si128((__m128i *)p2, _mm512_extracti32x4_epi32(v, 2));
        _mm_storeu_si128((__m128i *)p3, _mm512_extracti32x4_epi32(v, 3));
    } else if (nv == 2) {
        _mm256_storeu_si256((__m256i *)p0, _mm512_castsi512_si256(v));
        _mm256_storeu_si256((__m256i *)p1, _mm512_extracti32x8_epi32(v, 1));
    } else if (nv == 3) {
        _mm256_storeu_si256((__m256i *)p0, _mm512_castsi512_si256(v));
        _mm_storeu_si128((__m128i *)(p0 + 32), _mm512_extracti32x4_epi32(v, 2));
    } else {
        _mm512_storeu_si512(p0, v);
    }
}

/* The same of int16. */
#define QK_WORDS 1
static inline qk_bounds qk_word_bounds(int low, int high)
{
    qk_bounds b = {_mm512_set1_epi32((int32_t)((uint16_t)low * 0x10001u)),
                   _mm512_set1_epi32((int32_t)((uint16_t)high * 0x10001u))};
    return b;
}
static inline __m512i qk_pack_words(qk_vec x, qk_vec y, qk_bounds bounds)
{
    const __m512i v = _mm512_min_epi16(_mm512_max_epi16(_mm512_packs_epi32(x, y), bounds.low), bounds.high);
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15), v);
}
static inline __attribute__((always_inline)) void qk_store_words(
    const int nv, uint8_t *p, qk_vec x0, qk_vec x1, qk_vec x2, qk_vec x3, qk_bounds bounds)
{
    const __m512i v = qk_pack_words(x0, x1, bounds);
    if (nv == 1)
        _mm256_storeu_si256((__m256i *)p, _mm512_castsi512_si256(v));
    else
        _mm512_storeu_si512(p, v);
    if (nv == 3)
        _mm256_storeu_si256((__m256i *)(p + 64), _mm512_castsi512_si256(qk_pack_words(x2, x2, bounds)));
    else if (nv == 4)
        _mm512_storeu_si512(p + 64, qk_pack_words(x2, x3, bounds));
}

/* Four pixels of a register as bytes; and four such registers to pixels, `pitch` bytes apart. */
typedef qk_real qk_part_real;
#define qk_load_part_real qk_load_real
typedef qk_factor qk_part_factor;
#define qk_load_part_factor qk_load_factor
#define qk_scale_part qk_scale
#define qk_times_part qk_times
#define qk_all_parts qk_all
static inline void qk_pack_pixels(uint8_t *to, qk_vec x0, qk_vec x1, qk_vec x2, qk_vec x3)
{
    _mm512_storeu_si512(to, _mm512_packus_epi16(_mm512_packs_epi32(x0, x1), _mm512_packs_epi32(x2, x3)));
}
static inline void qk_turn_pixels(const int pixels, uint8_t *to, int64_t pitch, const uint8_t *from, int clips,
                                  qk_bounds b)
{
    __m512i x0 = _mm512_loadu_si512(from), x1 = _mm512_loadu_si512(from + 64);
    __m512i x2 = _mm512_loadu_si512(from + 128), x3 = _mm512_loadu_si512(from + 192);
    if (clips) {
        x0 = _mm512_min_epu8(_mm512_max_epu8(x0, b.low), b.high);
        x1 = _mm512_min_epu8(_mm512_max_epu8(x1, b.low), b.high);
        x2 = _mm512_min_epu8(_mm512_max_epu8(x2, b.low), b.high);
        x3 = _mm512_min_epu8(_mm512_max_epu8(x3, b.low), b.high);
    }
    const __m512i u0 = _mm512_unpacklo_epi32(x0, x1), u1 = _mm512_unpackhi_epi32(x0, x1);
    const __m512i v0 = _mm512_unpacklo_epi32(x2, x3), v1 = _mm512_unpackhi_epi32(x2, x3);
    _mm512_storeu_si512(to, _mm512_unpacklo_epi64(u0, v0));
    _mm512_storeu_si512(to + pitch, _mm512_unpackhi_epi64(u0, v0));
    _mm512_storeu_si512(to + 2 * pitch, _mm512_unpacklo_epi64(u1, v1));
    if (pixels > 3)
        _mm512_storeu_si512(to + 3 * pitch, _mm512_unpackhi_epi64(u1, v1));
}
/* The same of int16: two pixels of a register; and four such registers, clipped, to one or two pixels. */
static inline void qk_pack_pair(uint8_t *to, qk_vec x0, qk_vec x1) { _mm512_storeu_si512(to, _mm512_packs_epi32(x0, x1)); }
static inline void qk_turn_pair(const int pixels, uint8_t *to, int64_t pitch, const uint8_t *from, const uint8_t *limits)
{
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), last = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
#define QK_WITHIN(k)                                                                                              \
    _mm512_min_epi16(_mm512_max_epi16(_mm512_loadu_si512(from + 64 * k), _mm512_loadu_si512(limits + 64 * k)),    \
                     _mm512_loadu_si512(limits + 64 * (4 + k)))
    const __m512i x0 = QK_WITHIN(0), x1 = QK_WITHIN(1), x2 = QK_WITHIN(2), x3 = QK_WITHIN(3);
#undef QK_WITHIN
    const __m512i u = _mm512_unpacklo_epi64(x0, x1), v = _mm512_unpacklo_epi64(x2, x3);
    const __m512i y = _mm512_unpackhi_epi64(x0, x1), z = _mm512_unpackhi_epi64(x2, x3);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi64(u, first, v));
    _mm512_storeu_si512(to + 64, _mm512_permutex2var_epi64(u, last, v));
    if (pixels > 1) {
        _mm512_storeu_si512(to + pitch, _mm512_permutex2var_epi64(y, first, z));
        _mm512_storeu_si512(to + pitch + 64, _mm512_permutex2var_epi64(y, last, z));
    }
}
static inline void qk_store_s16(void *p, qk_vec v, int n)
{
    if (n == 16)
        _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(v));
    else
        _mm256_mask_storeu_epi16(p, (__mmask16)((1u << n) - 1), _mm512_cvtepi32_epi16(v));
}
#define QK_OWN_STORE_S32
static inline void qk_store_s32(void *p, qk_vec v, int n)
{
    if (n == 16)
        _mm512_storeu_si512(p, v);
    else
        _mm512_mask_storeu_epi32(p, (__mmask16)((1u << n) - 1), v);
}

/* out[i] = table[in[i]], by tables of sixteen bytes. A shuffle gives 0 where the index is negative,
 * so the exclusive or of the differences up to the upper half of an index is its entry. */
static inline int64_t qk_lookup_shuffles(uint8_t *out, const uint8_t *in, const uint8_t *table, int64_t n)
{
    const __m512i top = _mm512_set1_epi8(-128), next = _mm512_set1_epi8(16);
    __m512i part[16];
    int64_t i = 0;
    for (int k = 0; k < 16; k++)
        part[k] = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table + k));
    for (int k = 15; k > 0; k--)
        part[k] = k == 8 ? part[k] : _mm512_xor_si512(part[k], part[k - 1]);
    for (; i + 64 <= n; i += 64) {
        __m512i x = _mm512_loadu_si512(in + i), y = _mm512_xor_si512(x, top);
        __m512i low = _mm512_shuffle_epi8(part[0], x), high = _mm512_shuffle_epi8(part[8], y);
        for (int k = 1; k < 8; k++) {
            x = _mm512_subs_epi8(x, next);
            y = _mm512_subs_epi8(y, next);
            low = _mm512_xor_si512(low, _mm512_shuffle_epi8(part[k], x));
            high = _mm512_xor_si512(high, _mm512_shuffle_epi8(part[k + 8], y));
        }
        _mm512_storeu_si512(out + i, _mm512_xor_si512(low, high));
    }
    return i;
}

#ifndef QK_SCALAR_INTRINSICS
#include <cpuid.h>
/* AVX512-VBMI, which some processors with VNNI have, looks 128 bytes up at once. */
static int qk_has_vbmi;
__attribute__((constructor)) static void qk_ask_for_vbmi(void)
{
    unsigned a, b, c, d;
    qk_has_vbmi = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c >> 1 & 1);
}
__attribute__((target("avx512f,avx512bw,avx512vbmi"))) static int64_t qk_lookup_vbmi(
    uint8_t *out, const uint8_t *in, const uint8_t *table, int64_t n)
{
    const __m512i a = _mm512_loadu_si512(table), b = _mm512_loadu_si512(table + 64);
    const __m512i c = _mm512_loadu_si512(table + 128), d = _mm512_loadu_si512(table + 192);
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
        const __m512i x = _mm512_loadu_si512(in + i);
        const __m512i low = _mm512_permutex2var_epi8(a, x, b), high = _mm512_permutex2var_epi8(c, x, d);
        _mm512_storeu_si512(out + i, _mm512_mask_blend_epi8(_mm512_movepi8_mask(x), low, high));
    }
    return i;
}

/* Bytes of int16 by lines: those of x in the even bytes, those of y in the odd ones. */
#define QK_LINES
#define qk_has_lines qk_has_vbmi
#define QK_VBMI __attribute__((target("avx512f,avx512bw,avx512vbmi"), always_inline))
typedef struct {
    __m512i base[4], start[4], slope[4], place, last, more;
    __m128i bits, upper_bits, rest_bits, upper_rest_bits;
} qk_held_lines;
QK_VBMI static inline qk_held_lines qk_hold_lines(const qk_line_table *l)
{
    qk_held_lines h;
    for (int k = 0; k < 4; k++) {
        h.base[k] = _mm512_loadu_si512(l->base + 64 * k);
        h.start[k] = _mm512_loadu_si512(l->start + 64 * k);
        h.slope[k] = _mm512_loadu_si512(l->slope + 64 * k);
    }
    h.place = _mm512_set1_epi8((char)l->place);
    h.last = _mm512_set1_epi8((char)l->last);
    h.more = _mm512_set1_epi8((char)l->more);
    h.bits = _mm_cvtsi32_si128(l->bits);
    h.upper_bits = _mm_cvtsi32_si128(8 - l->bits);
    h.rest_bits = _mm_cvtsi32_si128(4 - l->bits);
    h.upper_rest_bits = _mm_cvtsi32_si128(12 - l->bits);
    return h;
}
QK_VBMI static inline __m512i qk_of_place(const __m512i *t, __m512i place, __mmask64 upper)
{
    return _mm512_mask_blend_epi8(upper, _mm512_permutex2var_epi8(t[0], place, t[1]),
                                  _mm512_permutex2var_epi8(t[2], place, t[3]));
}
QK_VBMI static inline __m512i qk_by_lines(const qk_held_lines *h, const int bent, __m512i x, __m512i y)
{
    const __m512i even = _mm512_set1_epi16(255), low = _mm512_set1_epi16(15), high = _mm512_set1_epi16(15 << 8);
    const __m512i px = _mm512_srl_epi16(x, h->bits), py = _mm512_sll_epi16(y, h->upper_bits);
    const __m512i rx = _mm512_and_si512(_mm512_sll_epi16(x, h->rest_bits), low);
    const __m512i ry = _mm512_and_si512(_mm512_sll_epi16(y, h->upper_rest_bits), high);
#define QK_EVEN_ODD(u, v) _mm512_ternarylogic_epi32(even, u, v, 0xca)
    const __m512i place = QK_EVEN_ODD(px, py);
    const __mmask64 upper = _mm512_movepi8_mask(place);
    const __m512i base = qk_of_place(h->base, place, upper), start = qk_of_place(h->start, place, upper);
    const __m512i slope = qk_of_place(h->slope, place, upper);
    const __m512i u = _mm512_add_epi16(_mm512_maddubs_epi16(rx, slope), _mm512_and_si512(start, even));
    const __m512i v = _mm512_add_epi16(_mm512_maddubs_epi16(ry, slope), _mm512_srli_epi16(start, 8));
    const __m512i sum = _mm512_add_epi8(base, QK_EVEN_ODD(_mm512_srli_epi16(u, 8), v));
#undef QK_EVEN_ODD
    if (!bent)
        return sum;
    const __mmask64 here = _mm512_cmpeq_epi8_mask(place, h->place);
    return _mm512_mask_add_epi8(sum, _mm512_mask_cmpgt_epi8_mask(here, _mm512_or_si512(rx, ry), h->last), sum, h->more);
}
QK_VBMI static inline int64_t qk_lookup_held(uint8_t *out, const int16_t *in, const qk_held_lines *h, const int bent,
                                             int64_t n)
{
    const __m512i words = _mm512_setr_epi64(0x0e0c0a0806040200, 0x1e1c1a1816141210, 0x2e2c2a2826242220,
                                            0x3e3c3a3836343230, 0x0f0d0b0907050301, 0x1f1d1b1917151311,
                                            0x2f2d2b2927252321, 0x3f3d3b3937353331);
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
        const __m512i v = qk_by_lines(h, bent, _mm512_loadu_si512(in + i), _mm512_loadu_si512(in + i + 32));
        _mm512_storeu_si512(out + i, _mm512_permutexvar_epi8(words, v));
    }
    return i;
}
__attribute__((target("avx512f,avx512bw,avx512vbmi"))) static int64_t qk_lookup_lines(
    uint8_t *out, const int16_t *in, const qk_line_table *l, int64_t n)
{
    const qk_held_lines h = qk_hold_lines(l);
    return l->more ? qk_lookup_held(out, in, &h, 1, n) : qk_lookup_held(out, in, &h, 0, n);
}
#endif

#define QK_LOOKUP_BYTES
static inline void qk_lookup_bytes(uint8_t *out, const uint8_t *in, const uint8_t *table, int64_t n)
{
#ifdef QK_SCALAR_INTRINSICS
    int64_t i = qk_lookup_shuffles(out, in, table, n);
#else
    int64_t i = (qk_has_vbmi ? qk_lookup_vbmi : qk_lookup_shuffles)(out, in, table, n);
#endif
    for (; i < n; i++)
        out[i] = table[in[i]];
}
#endif
