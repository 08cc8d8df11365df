/* Primitives of the integer engine for AVX2: see isa_vnni.h for what each one means.
 *
 * vpmaddubsw would saturate the sum of two products of full 8-bit operands. Activations and
 * weights are therefore widened to int16, and vpmaddwd multiplies pairs without loss. Where the
 * weights of a product are so small that no pair can saturate, bytes are multiplied.
 */
#ifndef QK_ISA_H
#define QK_ISA_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#ifdef QK_AVXVNNI /* dot steps are those of isa_avxvnni.h */
#define QK_NAME "avxvnni"
#define QK_KU 4
#define QK_WIDEN 0
#define QK_WEIGHT_BYTES 1
typedef uint8_t qk_act;
#else
#define QK_NAME "avx2"
#define QK_KU 2
#define QK_WIDEN 1 /* rows of activations are copied as int16 first */
#define QK_WEIGHT_BYTES 2
#define QK_NARROW 1
typedef int16_t qk_act;
#endif
#define QK_ACT_SHIFT 0
#define QK_LANES 8
#define QK_NV 1
#define QK_ROWS(nv) 6
#define QK_MAX_ROWS 6
#define QK_REALS 1
#define QK_PAIR_PIXELS 4 /* of a depthwise convolution, two output rows together */
#define QK_FOUR_PIXELS 2 /* three or four output rows together */
#define QK_LANES_16 2    /* lanes of 16 bytes of a register */

typedef struct {
    __m256i a, b;
} qk_vec;
typedef qk_vec qk_weight;
typedef __m256i qk_spread;

static inline qk_vec qk_load(const int32_t *p)
{
    qk_vec v = {_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 8))};
    return v;
}
static inline void qk_store(int32_t *p, qk_vec v)
{
    _mm256_storeu_si256((__m256i *)p, v.a);
    _mm256_storeu_si256((__m256i *)(p + 8), v.b);
}
static inline qk_vec qk_all(int32_t x)
{
    qk_vec v = {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
    return v;
}
#define QK_BOTH(name, op)                                      \
    static inline qk_vec name(qk_vec x, qk_vec y)              \
    {                                                          \
        qk_vec v = {op(x.a, y.a), op(x.b, y.b)};               \
        return v;                                              \
    }
QK_BOTH(qk_add, _mm256_add_epi32)
QK_BOTH(qk_sub, _mm256_sub_epi32)
QK_BOTH(qk_mul, _mm256_mullo_epi32)
QK_BOTH(qk_min, _mm256_min_epi32)
QK_BOTH(qk_max, _mm256_max_epi32)
QK_BOTH(qk_and, _mm256_and_si256)
QK_BOTH(qk_shift_right, _mm256_srav_epi32)
#undef QK_BOTH

static inline qk_weight qk_load_weight(const void *p) { return qk_load((const int32_t *)p); }

static inline qk_spread qk_spread4(const void *p)
{
    int32_t pair;
    memcpy(&pair, p, 4);
    return _mm256_set1_epi32(pair);
}

/* acc + x in the register of acc: gcc would copy sums between registers, a tenth of the time of a tile. */
static inline __m256i qk_sum(__m256i acc, __m256i x)
{
    __asm__("vpaddd %1, %0, %0" : "+x"(acc) : "x"(x));
    return acc;
}

/* Four bytes by four weights, of bytes that were split into even and odd ones. */
static inline __m256i qk_dot_half_wide(__m256i acc, qk_spread even, qk_spread odd, __m256i w)
{
    acc = qk_sum(acc, _mm256_madd_epi16(even, _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8)));
    return qk_sum(acc, _mm256_madd_epi16(odd, _mm256_srai_epi16(w, 8)));
}

/* Eight columns: half a vector. */
#define QK_EIGHTS
typedef __m256i qk_eight;
static inline qk_eight qk_load_eight(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline void qk_store_eight(int32_t *p, qk_eight v) { _mm256_storeu_si256((__m256i *)p, v); }

/* A depthwise convolution works on registers of eight channels, held against a second load. */
#define QK_PARTS 2
typedef __m256i qk_part;
typedef __m256i qk_part_taps;
typedef __m256i qk_part_weight;
#define QK_HOLD(x) __asm__("" : "+x"(x))
static inline __m256i qk_load_part(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
#define qk_load_part_taps qk_load_part
#define qk_load_part_weight qk_load_part
static inline void qk_store_part_sums(int32_t *p, __m256i v) { _mm256_storeu_si256((__m256i *)p, v); }

/* Sixteen columns of two rows of int16, the rows of a column side by side: 64 bytes. */
static inline void qk_interleave_pairs(void *to, const uint8_t *const *rows)
{
    const __m256i x = _mm256_loadu_si256((const __m256i *)rows[0]), y = _mm256_loadu_si256((const __m256i *)rows[1]);
    const __m256i low = _mm256_unpacklo_epi16(x, y), high = _mm256_unpackhi_epi16(x, y);
    _mm256_storeu_si256((__m256i *)to, _mm256_permute2x128_si256(low, high, 0x20));
    _mm256_storeu_si256((__m256i *)to + 1, _mm256_permute2x128_si256(low, high, 0x31));
}

/* Columns of a row of bytes for the lanes of a register: one place or two fill them. */
static inline __m256i qk_load_lanes(const uint8_t *p, const int shared, const int64_t *ahead)
{
    if (shared == 1)
        return _mm256_loadu_si256((const __m256i *)p);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(p + ahead[0]))),
                                   _mm_loadu_si128((const __m128i *)(p + ahead[1])), 1);
}

#ifdef QK_AVXVNNI
#include "isa_avxvnni.h"
#else
static inline qk_vec qk_dot(qk_vec acc, qk_spread a, qk_weight w)
{
    acc.a = qk_sum(acc.a, _mm256_madd_epi16(a, w.a));
    acc.b = qk_sum(acc.b, _mm256_madd_epi16(a, w.b));
    return acc;
}

/* Four bytes by four narrow weights, twice the products of one vpmaddwd: no pair saturates. */
static inline qk_vec qk_dot_narrow(qk_vec acc, qk_spread a, qk_weight w)
{
    const __m256i ones = _mm256_set1_epi16(1);
    acc.a = qk_sum(acc.a, _mm256_madd_epi16(_mm256_maddubs_epi16(a, w.a), ones));
    acc.b = qk_sum(acc.b, _mm256_madd_epi16(_mm256_maddubs_epi16(a, w.b), ones));
    return acc;
}

/* The same of any weights. */
static inline qk_vec qk_dot_wide(qk_vec acc, qk_spread a, qk_weight w)
{
    const qk_spread even = _mm256_and_si256(a, _mm256_set1_epi16(255)), odd = _mm256_srli_epi16(a, 8);
    acc.a = qk_dot_half_wide(acc.a, even, odd, w.a);
    acc.b = qk_dot_half_wide(acc.b, even, odd, w.b);
    return acc;
}

/* Two dot steps in one: x * w + y * next = (x + next) * (y + w) - x * y - w * next, with half the products. The
 * row of activations holds the sum of x * y, and the bias that of w * next. */
#define QK_CROSSES 1
static inline qk_vec qk_dot_crossed(qk_vec acc, qk_spread x, qk_spread y, qk_weight w, qk_weight next)
{
    acc.a = qk_sum(acc.a, _mm256_madd_epi16(_mm256_add_epi16(x, next.a), _mm256_add_epi16(y, w.a)));
    acc.b = qk_sum(acc.b, _mm256_madd_epi16(_mm256_add_epi16(x, next.b), _mm256_add_epi16(y, w.b)));
    return acc;
}
/* n bytes, a multiple of 4, as int16; the sum of x * y. May read and write up to 15 elements more. */
static inline int32_t qk_widen_crossed(int16_t *to, const uint8_t *from, int64_t n)
{
    const __m128i places = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m256i twice = _mm256_setzero_si256();
    for (int64_t i = 0; i < n; i += 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(from + i));
        if (n - i < 16)
            bytes = _mm_and_si128(bytes, _mm_cmplt_epi8(places, _mm_set1_epi8((char)(n - i))));
        const __m256i x = _mm256_cvtepu8_epi16(bytes);
        twice = _mm256_add_epi32(twice, _mm256_madd_epi16(x, _mm256_shuffle_epi32(x, 0xB1)));
        _mm256_storeu_si256((__m256i *)(to + i), x);
    }
    __m128i all = _mm_add_epi32(_mm256_castsi256_si128(twice), _mm256_extracti128_si256(twice, 1));
    all = _mm_add_epi32(all, _mm_unpackhi_epi64(all, all)); /* sums of both of a pair are equal */
    return _mm_cvtsi128_si32(all);
}

/* Two dot steps by weights of 4 bits: four products of them fit in 16 bits. */
#define QK_NIBBLES 1048576
static inline __m256i qk_dot_half_nibbles(__m256i acc, __m256i a, __m256i b, __m256i w)
{
    const __m256i last = _mm256_set1_epi8(15), low = _mm256_and_si256(w, last);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(w, 4), last);
    const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(a, low), _mm256_maddubs_epi16(b, high));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
static inline qk_vec qk_dot_nibbles(qk_vec acc, qk_spread a, qk_spread b, const void *p)
{
    const qk_weight w = qk_load_weight(p);
    acc.a = qk_dot_half_nibbles(acc.a, a, b, w.a);
    acc.b = qk_dot_half_nibbles(acc.b, a, b, w.b);
    return acc;
}

static inline qk_eight qk_dot_eight(const int narrow, qk_eight acc, qk_spread a, qk_eight w)
{
    const __m256i ones = _mm256_set1_epi16(1);
    return qk_sum(acc, narrow ? _mm256_madd_epi16(_mm256_maddubs_epi16(a, w), ones) : _mm256_madd_epi16(a, w));
}
static inline qk_eight qk_dot_eight_wide(qk_eight acc, qk_spread a, qk_eight w)
{
    return qk_dot_half_wide(acc, _mm256_and_si256(a, _mm256_set1_epi16(255)), _mm256_srli_epi16(a, 8), w);
}

static inline __m256i qk_dot_part(__m256i acc, __m256i x, __m256i w)
{
    return qk_sum(acc, _mm256_madd_epi16(x, w));
}

/* Sixteen columns of two rows of bytes, as pairs of int16: 64 bytes. */
static inline void qk_interleave(void *to, const uint8_t *const rows[2])
{
    __m128i x = _mm_loadu_si128((const __m128i *)rows[0]);
    __m128i y = _mm_loadu_si128((const __m128i *)rows[1]);
    _mm256_storeu_si256((__m256i *)to, _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(x, y)));
    _mm256_storeu_si256((__m256i *)to + 1, _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(x, y)));
}

/* Columns of two rows of bytes as pairs of int16, `pixel` bytes apart, `step` bytes apart where they
 * are written, each lane by itself. One place or two fill the lanes. */
static inline __attribute__((always_inline)) void qk_interleave_shared(
    uint8_t *to, int64_t step, int64_t columns, const uint8_t *const rows[2], int64_t pixel, const int shared,
    const int64_t *ahead)
{
    const __m256i zero = _mm256_setzero_si256();
    for (int64_t x = 0, at = 0; x < columns; x++, at += pixel, to += step) {
        const __m256i a = qk_load_lanes(rows[0] + at, shared, ahead), b = qk_load_lanes(rows[1] + at, shared, ahead);
        const __m256i low = _mm256_unpacklo_epi8(a, b), high = _mm256_unpackhi_epi8(a, b);
        _mm256_storeu_si256((__m256i *)to, _mm256_unpacklo_epi8(low, zero));
        _mm256_storeu_si256((__m256i *)to + 1, _mm256_unpackhi_epi8(low, zero));
        _mm256_storeu_si256((__m256i *)to + 2, _mm256_unpacklo_epi8(high, zero));
        _mm256_storeu_si256((__m256i *)to + 3, _mm256_unpackhi_epi8(high, zero));
    }
}

/* n bytes as int16. May read and write up to 15 elements more. */
static inline void qk_widen(int16_t *to, const uint8_t *from, int64_t n)
{
#pragma GCC unroll 4
    for (int64_t i = 0; i < n; i += 16)
        _mm256_storeu_si256((__m256i *)(to + i),
                            _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(from + i))));
}
#endif

static inline void qk_interleave_lanes(uint8_t *to, int64_t step, int64_t columns, const uint8_t *const rows[QK_KU],
                                       int64_t pixel, int shared, const int64_t *ahead)
{
    if (shared == 1)
        qk_interleave_shared(to, step, columns, rows, pixel, 1, ahead);
    else
        qk_interleave_shared(to, step, columns, rows, pixel, 2, ahead);
}

/* The same of two rows of int16: sixteen channels of a place fill a register. */
static inline void qk_interleave_pair_lanes(uint8_t *to, int64_t step, int64_t columns, const uint8_t *const *rows,
                                            int64_t pixel, int shared, const int64_t *ahead)
{
    const int64_t first = shared == 1 ? 0 : ahead[0], second = shared == 1 ? 32 : ahead[1];
    for (int64_t x = 0, at = 0; x < columns; x++, at += pixel, to += step) {
        const __m256i a0 = _mm256_loadu_si256((const __m256i *)(rows[0] + at + first));
        const __m256i a1 = _mm256_loadu_si256((const __m256i *)(rows[0] + at + second));
        const __m256i b0 = _mm256_loadu_si256((const __m256i *)(rows[1] + at + first));
        const __m256i b1 = _mm256_loadu_si256((const __m256i *)(rows[1] + at + second));
        const __m256i a = _mm256_permute2x128_si256(a0, a1, 0x20), next = _mm256_permute2x128_si256(a0, a1, 0x31);
        const __m256i b = _mm256_permute2x128_si256(b0, b1, 0x20), last = _mm256_permute2x128_si256(b0, b1, 0x31);
        _mm256_storeu_si256((__m256i *)to, _mm256_unpacklo_epi16(a, b));
        _mm256_storeu_si256((__m256i *)to + 1, _mm256_unpackhi_epi16(a, b));
        _mm256_storeu_si256((__m256i *)to + 2, _mm256_unpacklo_epi16(next, last));
        _mm256_storeu_si256((__m256i *)to + 3, _mm256_unpackhi_epi16(next, last));
    }
}

typedef struct {
    __m256i even, odd, add_even, add_odd, shift;
} qk_half_factor;
typedef struct {
    qk_half_factor a, b;
} qk_factor;

static inline qk_half_factor qk_load_half(const int32_t *mult, const int64_t *add, const int32_t *shift)
{
    qk_half_factor f;
    f.even = _mm256_loadu_si256((const __m256i *)mult);
    f.odd = _mm256_srli_epi64(f.even, 32);
    f.add_even = _mm256_loadu_si256((const __m256i *)add);
    f.add_odd = _mm256_loadu_si256((const __m256i *)(add + 4));
    f.shift = _mm256_loadu_si256((const __m256i *)shift);
    return f;
}
static inline qk_factor qk_load_factor(const int32_t *mult, const int64_t *add, const int32_t *shift)
{
    qk_factor f = {qk_load_half(mult, add, shift), qk_load_half(mult + 8, add + 8, shift + 8)};
    return f;
}
static inline __m256i qk_scale_half(__m256i x, const qk_half_factor *f)
{
    __m256i even = _mm256_add_epi64(_mm256_mul_epi32(x, f->even), f->add_even);
    __m256i odd = _mm256_add_epi64(_mm256_mul_epi32(_mm256_srli_epi64(x, 32), f->odd), f->add_odd);
    __m256i high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
    return _mm256_srav_epi32(high, f->shift);
}
static inline qk_vec qk_scale(qk_vec x, const qk_factor *f)
{
    qk_vec v = {qk_scale_half(x.a, &f->a), qk_scale_half(x.b, &f->b)};
    return v;
}

typedef struct {
    __m256 a, b;
} qk_real;
static inline qk_real qk_load_real(const void *p)
{
    qk_real f = {_mm256_loadu_ps((const float *)p), _mm256_loadu_ps((const float *)p + 8)};
    return f;
}
static inline __m256i qk_times_half(__m256i x, __m256 factor, __m256i less)
{
    const __m256 sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(x), factor, _mm256_set1_ps(QK_REAL_ONE));
    return _mm256_sub_epi32(_mm256_castps_si256(sum), less);
}
static inline qk_vec qk_times(qk_vec x, qk_real factor, qk_vec less)
{
    qk_vec v = {qk_times_half(x.a, factor.a, less.a), qk_times_half(x.b, factor.b, less.b)};
    return v;
}

static inline qk_vec qk_shift_left(qk_vec x, int bits)
{
    __m128i n = _mm_cvtsi32_si128(bits);
    qk_vec v = {_mm256_sll_epi32(x.a, n), _mm256_sll_epi32(x.b, n)};
    return v;
}

static inline qk_vec qk_load_u8(const uint8_t *p)
{
    __m128i x = _mm_loadu_si128((const __m128i *)p);
    qk_vec v = {_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))};
    return v;
}
static inline qk_vec qk_load_s16(const void *p)
{
    const __m128i *q = (const __m128i *)p;
    qk_vec v = {_mm256_cvtepi16_epi32(_mm_loadu_si128(q)), _mm256_cvtepi16_epi32(_mm_loadu_si128(q + 1))};
    return v;
}

static inline __m256i qk_pack16(qk_vec v)
{
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(v.a, v.b), 0xD8);
}
/* Bounds of bytes, and four rows of sixteen values, saturated to bytes and clipped. */
typedef struct {
    __m256i low, high;
    int clip;
} qk_bounds;
static inline qk_bounds qk_byte_bounds(int low, int high)
{
    qk_bounds b = {_mm256_set1_epi8((char)low), _mm256_set1_epi8((char)high), low > 0 || high < 255};
    return b;
}
static inline void qk_store_part(uint8_t *p, __m128i bytes, int n)
{
    if (n == 16) {
        _mm_storeu_si128((__m128i *)p, bytes);
    } else if (n == 8) {
        _mm_storel_epi64((__m128i *)p, bytes);
    } else {
        uint8_t all[16];
        _mm_storeu_si128((__m128i *)all, bytes);
        memcpy(p, all, (size_t)n);
    }
}
static inline void qk_store_u8(uint8_t *p, qk_vec v, int n)
{
    __m256i x = qk_pack16(v);
    qk_store_part(p, _mm_packus_epi16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)), n);
}
static inline __m256i qk_pack_two(qk_vec x, qk_vec y, qk_bounds b)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i v = _mm256_packus_epi16(_mm256_packs_epi32(x.a, x.b), _mm256_packs_epi32(y.a, y.b));
    if (b.clip)
        v = _mm256_min_epu8(_mm256_max_epu8(v, b.low), b.high);
    return _mm256_permutevar8x32_epi32(v, order);
}
static inline void qk_store_rows(uint8_t *const *out, int64_t offset, qk_vec x0, qk_vec x1, qk_vec x2, qk_vec x3,
                                 qk_bounds bounds, int n)
{
    const __m256i v = qk_pack_two(x0, x1, bounds), w = qk_pack_two(x2, x3, bounds);
    qk_store_part(out[0] + offset, _mm256_castsi256_si128(v), n);
    qk_store_part(out[1] + offset, _mm256_extracti128_si256(v, 1), n);
    qk_store_part(out[2] + offset, _mm256_castsi256_si128(w), n);
    qk_store_part(out[3] + offset, _mm256_extracti128_si256(w, 1), n);
}
#define QK_PACKED 2
#define QK_HOLD_VECTOR(x) (void)0
static inline __attribute__((always_inline)) void qk_store_bytes(
    const int nv, uint8_t *p0, uint8_t *p1, uint8_t *p2, uint8_t *p3, qk_vec x0, qk_vec x1, qk_vec x2, qk_vec x3,
    qk_bounds bounds)
{
    const __m256i v = qk_pack_two(x0, x1, bounds);
    _mm_storeu_si128((__m128i *)p0, _mm256_castsi256_si128(v));
    _mm_storeu_si128((__m128i *)p1, _mm256_extracti128_si256(v, 1));
    (void)nv, (void)p2, (void)p3, (void)x2, (void)x3;
}

/* The same of int16. */
#define QK_WORDS 1
static inline qk_bounds qk_word_bounds(int low, int high)
{
    qk_bounds b = {_mm256_set1_epi16((int16_t)low), _mm256_set1_epi16((int16_t)high), 1};
    return b;
}
static inline __attribute__((always_inline)) void qk_store_words(
    const int nv, uint8_t *p, qk_vec x0, qk_vec x1, qk_vec x2, qk_vec x3, qk_bounds bounds)
{
    const __m256i v = _mm256_min_epi16(_mm256_max_epi16(qk_pack16(x0), bounds.low), bounds.high);
    _mm256_storeu_si256((__m256i *)p, v);
    (void)nv, (void)x1, (void)x2, (void)x3;
}

/* Four pixels of a register as bytes; and four such registers to pixels, `pitch` bytes apart. */
typedef __m256 qk_part_real;
#define qk_load_part_real(p) _mm256_loadu_ps((const float *)(p))
#define qk_times_part qk_times_half
typedef qk_half_factor qk_part_factor;
#define qk_load_part_factor qk_load_half
#define qk_scale_part qk_scale_half
#define qk_all_parts _mm256_set1_epi32
static inline void qk_pack_pixels(uint8_t *to, __m256i x0, __m256i x1, __m256i x2, __m256i x3)
{
    _mm256_storeu_si256((__m256i *)to, _mm256_packus_epi16(_mm256_packs_epi32(x0, x1), _mm256_packs_epi32(x2, x3)));
}
static inline void qk_turn_pixels(const int pixels, uint8_t *to, int64_t pitch, const uint8_t *from, int clips,
                                  qk_bounds b)
{
    const __m256i *x = (const __m256i *)from;
    __m256i x0 = _mm256_loadu_si256(x), x1 = _mm256_loadu_si256(x + 1);
    __m256i x2 = _mm256_loadu_si256(x + 2), x3 = _mm256_loadu_si256(x + 3);
    if (clips) {
        x0 = _mm256_min_epu8(_mm256_max_epu8(x0, b.low), b.high);
        x1 = _mm256_min_epu8(_mm256_max_epu8(x1, b.low), b.high);
        x2 = _mm256_min_epu8(_mm256_max_epu8(x2, b.low), b.high);
        x3 = _mm256_min_epu8(_mm256_max_epu8(x3, b.low), b.high);
    }
    const __m256i u0 = _mm256_unpacklo_epi32(x0, x1), u1 = _mm256_unpackhi_epi32(x0, x1);
    const __m256i v0 = _mm256_unpacklo_epi32(x2, x3), v1 = _mm256_unpackhi_epi32(x2, x3);
    _mm256_storeu_si256((__m256i *)to, _mm256_unpacklo_epi64(u0, v0));
    _mm256_storeu_si256((__m256i *)(to + pitch), _mm256_unpackhi_epi64(u0, v0));
    _mm256_storeu_si256((__m256i *)(to + 2 * pitch), _mm256_unpacklo_epi64(u1, v1));
    if (pixels > 3)
        _mm256_storeu_si256((__m256i *)(to + 3 * pitch), _mm256_unpackhi_epi64(u1, v1));
}
/* The same of int16: two pixels of a register; and four such registers, clipped, to one or two pixels. */
static inline void qk_pack_pair(uint8_t *to, __m256i x0, __m256i x1)
{
    _mm256_storeu_si256((__m256i *)to, _mm256_packs_epi32(x0, x1));
}
static inline void qk_turn_pair(const int pixels, uint8_t *to, int64_t pitch, const uint8_t *from, const uint8_t *limits)
{
    const __m256i *sums = (const __m256i *)from, *ends = (const __m256i *)limits;
#define QK_WITHIN(k)                                                                                      \
    _mm256_min_epi16(_mm256_max_epi16(_mm256_loadu_si256(sums + k), _mm256_loadu_si256(ends + k)),        \
                     _mm256_loadu_si256(ends + 4 + k))
    const __m256i x0 = QK_WITHIN(0), x1 = QK_WITHIN(1), x2 = QK_WITHIN(2), x3 = QK_WITHIN(3);
#undef QK_WITHIN
    const __m256i u = _mm256_unpacklo_epi64(x0, x1), v = _mm256_unpacklo_epi64(x2, x3);
    const __m256i y = _mm256_unpackhi_epi64(x0, x1), z = _mm256_unpackhi_epi64(x2, x3);
    _mm256_storeu_si256((__m256i *)to, _mm256_permute2x128_si256(u, v, 0x20));
    _mm256_storeu_si256((__m256i *)to + 1, _mm256_permute2x128_si256(u, v, 0x31));
    if (pixels > 1) {
        _mm256_storeu_si256((__m256i *)(to + pitch), _mm256_permute2x128_si256(y, z, 0x20));
        _mm256_storeu_si256((__m256i *)(to + pitch) + 1, _mm256_permute2x128_si256(y, z, 0x31));
    }
}
static inline void qk_store_s16(void *p, qk_vec v, int n)
{
    if (n == 16) {
        _mm256_storeu_si256((__m256i *)p, qk_pack16(v));
    } else {
        int16_t all[16];
        _mm256_storeu_si256((__m256i *)all, qk_pack16(v));
        memcpy(p, all, 2 * (size_t)n);
    }
}

/* out[i] = table[in[i]], by tables of sixteen bytes. A shuffle gives 0 where the index is negative,
 * so the exclusive or of the differences up to the upper half of an index is its entry. */
#define QK_LOOKUP_BYTES
static inline void qk_lookup_bytes(uint8_t *out, const uint8_t *in, const uint8_t *table, int64_t n)
{
    const __m256i top = _mm256_set1_epi8(-128), next = _mm256_set1_epi8(16);
    __m256i part[16];
    int64_t i = 0;
    for (int k = 0; k < 16; k++)
        part[k] = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table + k));
    for (int k = 15; k > 0; k--)
        part[k] = k == 8 ? part[k] : _mm256_xor_si256(part[k], part[k - 1]);
    for (; i + 32 <= n; i += 32) {
        __m256i x = _mm256_loadu_si256((const __m256i *)(in + i)), y = _mm256_xor_si256(x, top);
        __m256i low = _mm256_shuffle_epi8(part[0], x), high = _mm256_shuffle_epi8(part[8], y);
        for (int k = 1; k < 8; k++) {
            x = _mm256_subs_epi8(x, next);
            y = _mm256_subs_epi8(y, next);
            low = _mm256_xor_si256(low, _mm256_shuffle_epi8(part[k], x));
            high = _mm256_xor_si256(high, _mm256_shuffle_epi8(part[k + 8], y));
        }
        _mm256_storeu_si256((__m256i *)(out + i), _mm256_or_si256(low, high));
    }
    for (; i < n; i++)
        out[i] = table[in[i]];
}
#endif
