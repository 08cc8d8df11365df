/* How many products of 8-bit integers a core adds up: twelve sums at a time, on registers. */
#include <stdint.h>

#define SUMS 12
#define EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

#if defined(QK_AMX)
#include "amx_tiles.h"
#define QK_TILE_SUM(n, a, b) QK_TILE_DOT(&tiles, n, a, b);
__attribute__((visibility("default"))) int64_t qk_peak(int64_t loops)
{
    static const uint8_t ones[QK_TILE_ROW] = {1};
    qk_amx tiles;
    if (!qk_has_tiles)
        return 0;
    loops /= 16;
    qk_tiles_begin(&tiles, 16, 16);
    QK_TILE_LOAD(&tiles, 4, ones, 0);
    QK_TILE_LOAD(&tiles, 5, ones, 0);
    QK_TILE_LOAD(&tiles, 6, ones, 0);
    QK_TILE_LOAD(&tiles, 7, ones, 0);
    for (int64_t i = 0; i < loops; i++) {
        QK_TILE_SUM(0, 4, 6) QK_TILE_SUM(1, 4, 7) QK_TILE_SUM(2, 5, 6) QK_TILE_SUM(3, 5, 7)
    }
    qk_tiles_end(&tiles);
    return loops * 4 * 16 * 16 * 64;
}
#else
#if defined(QK_VNNI)
#include <immintrin.h>
typedef __m512i vec;
enum { MACS = 64 };
static inline vec dot(vec s, vec a, vec b) { return _mm512_dpbusd_epi32(s, a, b); }
static inline vec all(int x) { return _mm512_set1_epi32(x); }
#define KEEP(v) __asm__ volatile("" : "+v"(v))
#elif defined(QK_AVX2) || defined(QK_AVXVNNI)
#include <immintrin.h>
typedef __m256i vec;
#ifdef QK_AVXVNNI
enum { MACS = 32 };
static inline vec dot(vec s, vec a, vec b) { return _mm256_dpbusd_avx_epi32(s, a, b); }
#else
enum { MACS = 16 };
static inline vec dot(vec s, vec a, vec b)
{
    return _mm256_add_epi32(s, _mm256_madd_epi16(a, b));
}
#endif
static inline vec all(int x) { return _mm256_set1_epi32(x); }
#define KEEP(v) __asm__ volatile("" : "+x"(v))
#elif defined(QK_NEON) || defined(QK_I8MM)
#include <arm_neon.h>
typedef int32x4_t vec;
#ifdef QK_I8MM
enum { MACS = 32 };
static inline vec dot(vec s, vec a, vec b)
{
    return vusmmlaq_s32(s, vreinterpretq_u8_s32(a), vreinterpretq_s8_s32(b));
}
#else
enum { MACS = 16 };
static inline vec dot(vec s, vec a, vec b)
{
    return vdotq_s32(s, vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b));
}
#endif
static inline vec all(int x) { return vdupq_n_s32(x); }
#define KEEP(v) __asm__ volatile("" : "+w"(v))
#else
typedef int32_t vec;
enum { MACS = 1 };
static inline vec dot(vec s, vec a, vec b) { return (int32_t)((uint32_t)s + (uint32_t)(a * b)); }
static inline vec all(int x) { return x; }
#define KEEP(v) __asm__ volatile("" : "+r"(v))
#endif

#define START(n) vec s##n = all(0);
#define STEP(n) KEEP(a); s##n = dot(s##n, a, b); KEEP(s##n);

__attribute__((visibility("default"))) int64_t qk_peak(int64_t loops)
{
    vec a = all(1), b = all(1);
    EACH(START)
    for (int64_t i = 0; i < loops; ++i) {
        EACH(STEP)
    }
    return loops * SUMS * MACS;
}
#endif
