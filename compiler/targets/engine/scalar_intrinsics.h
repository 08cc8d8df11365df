/* The AVX-512 intrinsics that isa_vnni.h uses, lane by lane in plain C, from their definitions.
 *
 * With -DQK_SCALAR_INTRINSICS the VNNI source runs on machines without AVX-512, for tests.
 */
#ifndef QK_SCALAR_INTRINSICS_H
#define QK_SCALAR_INTRINSICS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct { int32_t s32[16]; } __m512i;
typedef struct { int8_t byte[32]; } __m256i;
typedef struct { int8_t byte[16]; } __m128i;
typedef struct { float f32[16]; } __m512;
typedef uint16_t __mmask16;

#define QK_I for (int i = 0; i < 16; i++)
#define QK_LANEWISE(name, expression)                  \
    static inline __m512i name(__m512i a, __m512i b)   \
    {                                                  \
        __m512i r;                                     \
        QK_I {                                         \
            const int32_t x = a.s32[i], y = b.s32[i];  \
            r.s32[i] = expression;                     \
        }                                              \
        return r;                                      \
    }
QK_LANEWISE(_mm512_add_epi32, (int32_t)((uint32_t)x + (uint32_t)y))
QK_LANEWISE(_mm512_sub_epi32, (int32_t)((uint32_t)x - (uint32_t)y))
QK_LANEWISE(_mm512_mullo_epi32, (int32_t)((uint32_t)x * (uint32_t)y))
QK_LANEWISE(_mm512_and_si512, x & y)
QK_LANEWISE(_mm512_xor_si512, x ^ y)
QK_LANEWISE(_mm512_min_epi32, x < y ? x : y)
QK_LANEWISE(_mm512_max_epi32, x > y ? x : y)
QK_LANEWISE(_mm512_srav_epi32, x >> ((uint32_t)y > 31 ? 31 : y))

static inline __m512 _mm512_loadu_ps(const void *p) { __m512 v; memcpy(&v, p, 64); return v; }
static inline __m512 _mm512_set1_ps(float x) { __m512 v; QK_I v.f32[i] = x; return v; }
static inline __m512 _mm512_cvtepi32_ps(__m512i x) { __m512 v; QK_I v.f32[i] = (float)x.s32[i]; return v; }
static inline __m512i _mm512_castps_si512(__m512 x) { __m512i v; memcpy(&v, &x, 64); return v; }
static inline __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c)
{
    QK_I a.f32[i] = fmaf(a.f32[i], b.f32[i], c.f32[i]);
    return a;
}
static inline __m512i _mm512_loadu_si512(const void *p) { __m512i v; memcpy(&v, p, 64); return v; }
static inline void _mm512_storeu_si512(void *p, __m512i v) { memcpy(p, &v, 64); }
static inline __m256i _mm256_loadu_si256(const __m256i *p) { __m256i v; memcpy(&v, p, 32); return v; }
static inline __m128i _mm_loadu_si128(const __m128i *p) { __m128i v; memcpy(&v, p, 16); return v; }
static inline void _mm_storeu_si128(__m128i *p, __m128i v) { memcpy(p, &v, 16); }
static inline __m512i _mm512_set1_epi32(int32_t x) { __m512i v; QK_I v.s32[i] = x; return v; }
static inline __m512i _mm512_set4_epi32(int32_t d, int32_t c, int32_t b, int32_t a)
{
    const int32_t four[4] = {a, b, c, d};
    __m512i v;
    QK_I v.s32[i] = four[i % 4];
    return v;
}
#define _mm512_setr_epi32(...) qk_setr((const int32_t[16]){__VA_ARGS__})
static inline __m512i qk_setr(const int32_t *p) { return _mm512_loadu_si512(p); }
static inline __m128i _mm_cvtsi32_si128(int32_t x) { __m128i v = {{0}}; memcpy(&v, &x, 4); return v; }
static inline __m256i _mm512_cvtepi16_epi8(__m512i v)
{
    __m256i r;
    for (int i = 0; i < 32; i++)
        r.byte[i] = ((const int8_t *)&v)[2 * i];
    return r;
}
static inline __m512i _mm512_srli_epi16(__m512i v, int bits)
{
    uint16_t x[32];
    memcpy(x, &v, 64);
    for (int i = 0; i < 32; i++)
        x[i] = (uint16_t)(x[i] >> bits);
    return _mm512_loadu_si512(x);
}
static inline __m512i _mm512_castsi128_si512(__m128i x) { __m512i v = {{0}}; memcpy(&v, &x, 16); return v; }
static inline __m512i _mm512_inserti32x4(__m512i v, __m128i x, int place)
{
    memcpy((uint8_t *)&v + 16 * place, &x, 16);
    return v;
}
static inline __m512i _mm512_castsi256_si512(__m256i x) { __m512i v = {{0}}; memcpy(&v, &x, 32); return v; }
static inline __m512i _mm512_inserti64x4(__m512i v, __m256i x, int place)
{
    memcpy((uint8_t *)&v + 32 * place, &x, 32);
    return v;
}
static inline __m512i _mm512_permutexvar_epi32(__m512i places, __m512i v)
{
    __m512i r;
    QK_I r.s32[i] = v.s32[places.s32[i] & 15];
    return r;
}
static inline __m512i _mm512_shuffle_epi8(__m512i v, __m512i places)
{
    uint8_t from[64], at[64], to[64];
    memcpy(from, &v, 64);
    memcpy(at, &places, 64);
    for (int i = 0; i < 64; i++)
        to[i] = at[i] & 128 ? 0 : from[(i & 48) + (at[i] & 15)];
    return _mm512_loadu_si512(to);
}
static inline __m512i _mm512_dpbusd_epi32(__m512i acc, __m512i a, __m512i b)
{
    uint8_t x[64];
    int8_t y[64];
    memcpy(x, &a, 64);
    memcpy(y, &b, 64);
    QK_I {
        int32_t sum = 0;
        for (int k = 0; k < 4; k++)
            sum += x[4 * i + k] * y[4 * i + k];
        acc.s32[i] = (int32_t)((uint32_t)acc.s32[i] + (uint32_t)sum);
    }
    return acc;
}
static inline __m512i _mm512_dpwssd_epi32(__m512i acc, __m512i a, __m512i b)
{
    int16_t x[32], y[32];
    memcpy(x, &a, 64);
    memcpy(y, &b, 64);
    QK_I acc.s32[i] = (int32_t)((uint32_t)acc.s32[i] + (uint32_t)(x[2 * i] * y[2 * i] + x[2 * i + 1] * y[2 * i + 1]));
    return acc;
}
static inline __m512i _mm512_shuffle_i32x4(__m512i a, __m512i b, int places)
{
    __m512i r;
    for (int i = 0; i < 4; i++)
        memcpy((uint8_t *)&r + 16 * i, (const uint8_t *)(i < 2 ? &a : &b) + 16 * (places >> 2 * i & 3), 16);
    return r;
}

/* Sixty-four bit lanes. */
#define QK_WIDE(v) int64_t v##8[8]; memcpy(v##8, &v, 64)
static inline __m512i _mm512_srli_epi64(__m512i a, int bits)
{
    QK_WIDE(a);
    for (int i = 0; i < 8; i++)
        a8[i] = (int64_t)((uint64_t)a8[i] >> bits);
    return _mm512_loadu_si512(a8);
}
static inline __m512i _mm512_add_epi64(__m512i a, __m512i b)
{
    QK_WIDE(a);
    QK_WIDE(b);
    for (int i = 0; i < 8; i++)
        a8[i] = (int64_t)((uint64_t)a8[i] + (uint64_t)b8[i]);
    return _mm512_loadu_si512(a8);
}
static inline __m512i _mm512_mul_epi32(__m512i a, __m512i b)
{
    int64_t r[8];
    for (int i = 0; i < 8; i++)
        r[i] = (int64_t)a.s32[2 * i] * b.s32[2 * i];
    return _mm512_loadu_si512(r);
}
enum { _MM_PERM_DDBB = 0xF5 };
static inline __m512i _mm512_mask_shuffle_epi32(__m512i a, __mmask16 mask, __m512i b, int places)
{
    QK_I if (mask >> i & 1) a.s32[i] = b.s32[(i & 12) + (places >> 2 * (i & 3) & 3)];
    return a;
}
static inline __m512i _mm512_sll_epi32(__m512i a, __m128i bits)
{
    QK_I a.s32[i] = (int32_t)((uint32_t)a.s32[i] << bits.byte[0]);
    return a;
}
static inline __m512i _mm512_cvtepu8_epi32(__m128i x)
{
    __m512i v;
    QK_I v.s32[i] = (uint8_t)x.byte[i];
    return v;
}
static inline __m512i _mm512_cvtepi16_epi32(__m256i x)
{
    int16_t all[16];
    __m512i v;
    memcpy(all, &x, 32);
    QK_I v.s32[i] = all[i];
    return v;
}
static inline __m512i _mm512_cvtepi8_epi16(__m256i x)
{
    int16_t all[32];
    for (int i = 0; i < 32; i++)
        all[i] = x.byte[i];
    return _mm512_loadu_si512(all);
}
static inline __m128i _mm512_cvtepi32_epi8(__m512i v)
{
    __m128i r;
    QK_I r.byte[i] = (int8_t)v.s32[i];
    return r;
}
static inline __m256i _mm512_cvtepi32_epi16(__m512i v)
{
    int16_t all[16];
    __m256i r;
    QK_I all[i] = (int16_t)v.s32[i];
    memcpy(&r, all, 32);
    return r;
}
static inline __m512i _mm512_set1_epi8(char x)
{
    __m512i v;
    memset(&v, x, 64);
    return v;
}
#define QK_EXTREME(name, type, count, op)                 \
    static inline __m512i name(__m512i a, __m512i b)      \
    {                                                     \
        type x[count], y[count];                          \
        memcpy(x, &a, 64);                                \
        memcpy(y, &b, 64);                                \
        for (int i = 0; i < count; i++)                   \
            x[i] = x[i] op y[i] ? x[i] : y[i];            \
        return _mm512_loadu_si512(x);                     \
    }
QK_EXTREME(_mm512_min_epu8, uint8_t, 64, <)
QK_EXTREME(_mm512_max_epu8, uint8_t, 64, >)
QK_EXTREME(_mm512_min_epi16, int16_t, 32, <)
QK_EXTREME(_mm512_max_epi16, int16_t, 32, >)
#define _mm512_setr_epi64(...) _mm512_loadu_si512((const int64_t[8]){__VA_ARGS__})
static inline __m512i _mm512_permutex2var_epi64(__m512i a, __m512i places, __m512i b)
{
    int64_t x[16], p[8];
    memcpy(x, &a, 64);
    memcpy(x + 8, &b, 64);
    memcpy(p, &places, 64);
    for (int i = 0; i < 8; i++)
        p[i] = x[p[i] & 15];
    return _mm512_loadu_si512(p);
}

static inline __m512i _mm512_subs_epi8(__m512i a, __m512i b)
{
    int8_t x[64], y[64];
    memcpy(x, &a, 64);
    memcpy(y, &b, 64);
    for (int i = 0; i < 64; i++)
        x[i] = (int8_t)(x[i] - y[i] < -128 ? -128 : x[i] - y[i] > 127 ? 127 : x[i] - y[i]);
    return _mm512_loadu_si512(x);
}
static inline __m512i _mm512_broadcast_i32x4(__m128i x)
{
    __m512i v;
    for (int i = 0; i < 4; i++)
        memcpy((uint8_t *)&v + 16 * i, &x, 16);
    return v;
}

/* Two vectors side by side in every 128-bit lane, saturated to half their width. */
#define QK_PACK(name, from, to, count, low, high)                         \
    static inline __m512i name(__m512i a, __m512i b)                      \
    {                                                                     \
        from x[2][4][count];                                              \
        to r[4][2][count];                                                \
        memcpy(x[0], &a, 64);                                             \
        memcpy(x[1], &b, 64);                                             \
        for (int i = 0; i < 8 * count; i++) {                             \
            const from v = x[i / count % 2][i / count / 2][i % count];    \
            r[i / count / 2][i / count % 2][i % count] = (to)(v < low ? low : v > high ? high : v); \
        }                                                                 \
        return _mm512_loadu_si512(r);                                     \
    }
QK_PACK(_mm512_packs_epi32, int32_t, int16_t, 4, -32768, 32767)
QK_PACK(_mm512_packus_epi16, int16_t, uint8_t, 8, 0, 255)
static inline void _mm256_storeu_si256(__m256i *p, __m256i v) { memcpy(p, &v, 32); }
static inline __m256i _mm512_castsi512_si256(__m512i v) { return _mm256_loadu_si256((const __m256i *)&v); }
static inline __m256i _mm512_extracti32x8_epi32(__m512i v, int place)
{
    return _mm256_loadu_si256((const __m256i *)&v + place);
}
static inline __m128i _mm512_castsi512_si128(__m512i v) { return _mm_loadu_si128((const __m128i *)&v); }
static inline __m128i _mm512_extracti32x4_epi32(__m512i v, int place)
{
    return _mm_loadu_si128((const __m128i *)&v + place);
}

/* Elements of two vectors in turns, in every 128-bit lane: of the lower halves, or of the upper ones. */
#define QK_TURNS(name, size, half)                                                                  \
    static inline __m512i name(__m512i a, __m512i b)                                                \
    {                                                                                               \
        uint8_t x[2][64], r[64];                                                                    \
        memcpy(x[0], &a, 64);                                                                       \
        memcpy(x[1], &b, 64);                                                                       \
        for (int i = 0; i < 64; i++)                                                                \
            r[i] = x[i / size & 1][i / 16 * 16 + 8 * half + i % 16 / (2 * size) * size + i % size]; \
        return _mm512_loadu_si512(r);                                                               \
    }
QK_TURNS(_mm512_unpacklo_epi8, 1, 0)
QK_TURNS(_mm512_unpackhi_epi8, 1, 1)
QK_TURNS(_mm512_unpacklo_epi16, 2, 0)
QK_TURNS(_mm512_unpackhi_epi16, 2, 1)
QK_TURNS(_mm512_unpacklo_epi32, 4, 0)
QK_TURNS(_mm512_unpackhi_epi32, 4, 1)
QK_TURNS(_mm512_unpacklo_epi64, 8, 0)
QK_TURNS(_mm512_unpackhi_epi64, 8, 1)
#define QK_MASKED(name, type, size)                               \
    static inline void name(void *p, __mmask16 mask, type v)      \
    {                                                             \
        QK_I if (mask >> i & 1)                                   \
            memcpy((uint8_t *)p + i * size, (uint8_t *)&v + i * size, size); \
    }
QK_MASKED(_mm_mask_storeu_epi8, __m128i, 1)
QK_MASKED(_mm256_mask_storeu_epi16, __m256i, 2)
QK_MASKED(_mm512_mask_storeu_epi32, __m512i, 4)
#endif
