/* Dot steps for AVX-VNNI: vpdpbusd in 256 bits. All else is isa_avx2.h, which includes this.
 *
 * Weights are bytes, and rows are read where they are, as in isa_vnni.h. With AVX512-VNNI the instruction has
 * another encoding; -DQK_EMULATED gives the same sums by AVX2.
 */
#if defined(QK_EMULATED)
static inline __m256i qk_dot_bytes(__m256i acc, __m256i a, __m256i w)
{
    return qk_dot_half_wide(acc, _mm256_and_si256(a, _mm256_set1_epi16(255)), _mm256_srli_epi16(a, 8), w);
}
static inline __m256i qk_dot_words(__m256i acc, __m256i a, __m256i w) { return qk_sum(acc, _mm256_madd_epi16(a, w)); }
#elif defined(__AVXVNNI__)
#define qk_dot_bytes _mm256_dpbusd_avx_epi32
#define qk_dot_words _mm256_dpwssd_avx_epi32
#else
#define qk_dot_bytes _mm256_dpbusd_epi32
#define qk_dot_words _mm256_dpwssd_epi32
#endif

static inline qk_vec qk_dot(qk_vec acc, qk_spread a, qk_weight w)
{
    acc.a = qk_dot_bytes(acc.a, a, w.a);
    acc.b = qk_dot_bytes(acc.b, a, w.b);
    return acc;
}

/* Two int16 of a row, by bytes that are widened. */
#define QK_PAIRS 1
static inline qk_weight qk_load_weight_pairs(const void *p)
{
    const __m128i *q = (const __m128i *)p;
    qk_weight w = {_mm256_cvtepi8_epi16(_mm_loadu_si128(q)), _mm256_cvtepi8_epi16(_mm_loadu_si128(q + 1))};
    return w;
}
#define qk_spread_pair qk_spread4
static inline qk_vec qk_dot_spread_pair(qk_vec acc, qk_spread a, qk_weight w)
{
    acc.a = qk_dot_words(acc.a, a, w.a);
    acc.b = qk_dot_words(acc.b, a, w.b);
    return acc;
}

/* Two dot steps by weights of 4 bits. */
#define QK_NIBBLES 65536
static inline qk_vec qk_dot_nibbles(qk_vec acc, qk_spread a, qk_spread b, const void *p)
{
    const qk_weight w = qk_load_weight(p);
    const __m256i last = _mm256_set1_epi8(15);
    const qk_weight low = {_mm256_and_si256(w.a, last), _mm256_and_si256(w.b, last)};
    const qk_weight high = {_mm256_and_si256(_mm256_srli_epi16(w.a, 4), last),
                            _mm256_and_si256(_mm256_srli_epi16(w.b, 4), last)};
    return qk_dot(qk_dot(acc, a, low), b, high);
}

#define qk_dot_eight(narrow, acc, a, w) ((void)(narrow), qk_dot_bytes(acc, a, w))
#define qk_dot_eight_wide qk_dot_bytes
#define qk_dot_part qk_dot_bytes
#define qk_dot_pairs qk_dot_words

/* Sixteen columns of four rows of bytes, the rows of a column side by side: 64 bytes. */
static inline void qk_interleave(void *to, const uint8_t *const rows[4])
{
    __m128i x[4], *const out = (__m128i *)to;
    for (int i = 0; i < 4; i++)
        x[i] = _mm_loadu_si128((const __m128i *)rows[i]);
    const __m128i low = _mm_unpacklo_epi8(x[0], x[1]), high = _mm_unpackhi_epi8(x[0], x[1]);
    const __m128i next = _mm_unpacklo_epi8(x[2], x[3]), last = _mm_unpackhi_epi8(x[2], x[3]);
    _mm_storeu_si128(out, _mm_unpacklo_epi16(low, next));
    _mm_storeu_si128(out + 1, _mm_unpackhi_epi16(low, next));
    _mm_storeu_si128(out + 2, _mm_unpacklo_epi16(high, last));
    _mm_storeu_si128(out + 3, _mm_unpackhi_epi16(high, last));
}

/* The same of columns that are `pixel` bytes apart, `step` bytes apart where they are written, each lane by itself. */
static inline __attribute__((always_inline)) void qk_interleave_shared(
    uint8_t *to, int64_t step, int64_t columns, const uint8_t *const rows[4], int64_t pixel, const int shared,
    const int64_t *ahead)
{
    for (int64_t x = 0, at = 0; x < columns; x++, at += pixel, to += step) {
        const __m256i a = qk_load_lanes(rows[0] + at, shared, ahead), b = qk_load_lanes(rows[1] + at, shared, ahead);
        const __m256i c = qk_load_lanes(rows[2] + at, shared, ahead), d = qk_load_lanes(rows[3] + at, shared, ahead);
        const __m256i low = _mm256_unpacklo_epi8(a, b), high = _mm256_unpackhi_epi8(a, b);
        const __m256i next = _mm256_unpacklo_epi8(c, d), last = _mm256_unpackhi_epi8(c, d);
        _mm256_storeu_si256((__m256i *)to, _mm256_unpacklo_epi16(low, next));
        _mm256_storeu_si256((__m256i *)to + 1, _mm256_unpackhi_epi16(low, next));
        _mm256_storeu_si256((__m256i *)to + 2, _mm256_unpacklo_epi16(high, last));
        _mm256_storeu_si256((__m256i *)to + 3, _mm256_unpackhi_epi16(high, last));
    }
}
