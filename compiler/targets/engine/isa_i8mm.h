/* Products of two rows and more with the i8mm extension: usmmla multiplies two rows of eight bytes by two columns.
 *
 * A register holds sums of two rows by two columns; weights of a step with tiles lie as [k / 8][16 columns][8]. All other
 * primitives are those of isa_neon.h, whose dot steps take unsigned bytes as they are stored.
 */
#define QK_EACH_TWO(X, p) X(p, 0) X(p, 1) X(p, 2) X(p, 3) X(p, 4) X(p, 5) X(p, 6) X(p, 7)
#define QK_EACH_PAIR_OF_ROWS(X) X(0) X(1) X(2)

static inline int32x4_t qk_rows_apart(const int second, int32x4_t x, int32x4_t y)
{
    const int64x2_t a = vreinterpretq_s64_s32(x), b = vreinterpretq_s64_s32(y);
    return vreinterpretq_s32_s64(second ? vzip2q_s64(a, b) : vzip1q_s64(a, b));
}

/* Sums of mr rows; of an only row a pair is itself twice. */
static inline __attribute__((always_inline)) void qk_multiply_rows(
    const int mr, const int real, const uint8_t *const *rows, const int64_t *segment, int64_t segments, int64_t steps,
    const uint8_t *weight, const int32_t *bias, int32_t *sums, const qk_bytes *b)
{
#define QK_DECLARE(p, j) int32x4_t c##p##_##j = vreinterpretq_s32_s64(vld1q_dup_s64((const int64_t *)(bias + 2 * j)));
    QK_EACH_TWO(QK_DECLARE, 0) QK_EACH_TWO(QK_DECLARE, 1) QK_EACH_TWO(QK_DECLARE, 2)
#undef QK_DECLARE
    for (int64_t s = 0; s < segments; s++) {
#define QK_START(p)                                                      \
    const uint8_t *x##p = rows[mr > 2 * p ? 2 * p : 0] + segment[s];     \
    const uint8_t *y##p = rows[mr > 2 * p + 1 ? 2 * p + 1 : mr > 2 * p ? 2 * p : 0] + segment[s];
        QK_EACH_PAIR_OF_ROWS(QK_START)
#undef QK_START
        for (int64_t k = 0; k < 4 * steps; k += 8, weight += 128) {
#define QK_LOAD_ROWS(p) const uint8x16_t a##p = vcombine_u8(vld1_u8(x##p + k), vld1_u8(y##p + k));
            QK_EACH_PAIR_OF_ROWS(QK_LOAD_ROWS)
#undef QK_LOAD_ROWS
            /* Weights are loaded two registers at a time: with all of them, sums would leave theirs. */
#define QK_STEP(p, j)                                                         \
    const int8x16_t w##j = vld1q_s8((const int8_t *)weight + 16 * j);         \
    c0_##j = vusmmlaq_s32(c0_##j, a0, w##j);                                  \
    if (mr > 2) c1_##j = vusmmlaq_s32(c1_##j, a1, w##j);                      \
    if (mr > 4) c2_##j = vusmmlaq_s32(c2_##j, a2, w##j);                      \
    if (j % 2) __asm__ volatile("" : : : "memory");
            QK_EACH_TWO(QK_STEP, 0)
#undef QK_STEP
        }
    }
    const qk_real factor = real ? qk_load_real(b->factors) : qk_load_real(bias);
    const qk_vec less = qk_all(b->less);
#define QK_ROW(p, second)                                                                                         \
    if (mr > 2 * p + second) {                                                                                    \
        qk_vec v = {qk_rows_apart(second, c##p##_0, c##p##_1), qk_rows_apart(second, c##p##_2, c##p##_3),         \
                    qk_rows_apart(second, c##p##_4, c##p##_5), qk_rows_apart(second, c##p##_6, c##p##_7)};        \
        if (real) {                                                                                               \
            v = qk_times(v, factor, less);                                                                        \
            qk_store_bytes(1, b->out[2 * p + second] + b->offset, 0, 0, 0, v, v, v, v, b->bounds);                \
        } else {                                                                                                  \
            qk_store(sums + (2 * p + second) * 16, v);                                                            \
        }                                                                                                         \
    }
#define QK_ROWS_OF(p) QK_ROW(p, 0) QK_ROW(p, 1)
    QK_EACH_PAIR_OF_ROWS(QK_ROWS_OF)
#undef QK_ROWS_OF
#undef QK_ROW
}

#define QK_ROWS_NAMED(name, mr, real)                                                                        \
    static __attribute__((noinline)) void name##mr(                                                          \
        const uint8_t *const *rows, int64_t tiles, const int64_t *segment, int64_t segments, int64_t steps,  \
        const uint8_t *weight, const int32_t *bias, int32_t *sums, const qk_bytes *to)                       \
    {                                                                                                        \
        qk_bytes b = *to;                                                                                    \
        for (; tiles > 0; tiles--, rows += mr, sums += mr * 16, b.out += mr)                                 \
            qk_multiply_rows(mr, real, rows, segment, segments, steps, weight, bias, sums, &b);              \
    }
#define QK_ROWS_OF(name, real) \
    QK_ROWS_NAMED(name, 1, real) QK_ROWS_NAMED(name, 2, real) QK_ROWS_NAMED(name, 4, real) QK_ROWS_NAMED(name, 6, real)
QK_ROWS_OF(qk_rows_, QK_KEEP_SUMS) QK_ROWS_OF(qk_rows_bytes_, QK_TO_BYTES)
#undef QK_ROWS_OF
static const qk_tile_function qk_tiles_of_rows[2][7] = {
    {0, qk_rows_1, qk_rows_2, 0, qk_rows_4, 0, qk_rows_6},
    {0, qk_rows_bytes_1, qk_rows_bytes_2, 0, qk_rows_bytes_4, 0, qk_rows_bytes_6},
};

/* Minus comp times the sum of every column of a panel. */
static void qk_bias_of_tiles(int32_t comp, const uint8_t *panel, int64_t steps, int32_t *bias)
{
    const int8x16_t one = vdupq_n_s8(1);
    for (int j = 0; j < 4; j++) {
        int32x4_t low = vdupq_n_s32(0), high = low;
        for (int64_t k = 0; k < steps; k += 2) {
            const int8_t *const w = (const int8_t *)panel + k * 64 + j * 32;
            low = vdotq_s32(low, vld1q_s8(w), one);
            high = vdotq_s32(high, vld1q_s8(w + 16), one);
        }
        vst1q_s32(bias + 4 * j, vmulq_n_s32(vpaddq_s32(low, high), -comp));
    }
}
