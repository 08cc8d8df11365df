/* Products: convolutions, dense layers and batched matrix products as one tiled loop.
 *
 * Weights lie in panels of up to QK_NV vectors of sixteen columns, [steps][columns][QK_KU]. A tile
 * holds QK_ROWS rows of one panel in registers while it walks the reduced axis. Bytes and int16 that
 * are scaled by float32 factors leave the tile as such. All other sums are stored to the first-level
 * cache and requantized there: with the 64-bit products of the requantization in the same function,
 * gcc would keep accumulators in memory inside the loop.
 */
#include "step.h"

#define QK_MAX_SEGMENTS 1024

/* Where element (k, n) of a panel of nv vectors lies. compiler/targets/engine/packing.py: same. */
#ifndef QK_WEIGHT_PLACE
#define QK_WEIGHT_PLACE(k, n, nv, steps) (((k) / QK_KU * (nv) * 16 + (n)) * QK_KU + (k) % QK_KU)
#endif

/* Narrow weights: bytes in runs of four, of which no pair can leave 16 bits. Activations are read
 * where they are. Instruction sets that multiply bytes without loss need no such kernel. */
#ifndef QK_NARROW
#define QK_NARROW 0
#define qk_dot_narrow qk_dot
#define qk_dot_wide qk_dot
#endif

/* Activations of int16 are read where they are, in pairs. Tiles that widen bytes to int16 are the
 * tiles for them. Dot steps of four bytes need others: pairs of bytes are widened when a tile loads
 * its weights, because those of a product with few rows come from memory. */
#ifndef QK_PAIRS
#define QK_PAIRS 0
#define qk_load_weight_pairs qk_load_weight
#define qk_spread_pair qk_spread4
#define qk_dot_spread_pair qk_dot
#endif
#define QK_UNIT(g) ((g)->tile ? 4 : (g)->type == QK_S16 ? 2 : (g)->narrow ? 4 : QK_KU)

/* Most dot steps of a tile. */
#ifndef QK_TILE_STEPS
#define QK_TILE_STEPS 0
#endif

/* Dot steps with those that fill the last tile. */
static int64_t qk_in_tiles(int64_t steps, int64_t tile) { return tile ? (steps + tile - 1) / tile * tile : steps; }

#ifndef QK_OWN_STORE_S32
static inline void qk_store_s32(void *p, qk_vec v, int n)
{
    if (n == 16) {
        qk_store(p, v);
    } else {
        int32_t all[16];
        qk_store(all, v);
        memcpy(p, all, 4 * (size_t)n);
    }
}
#endif

/* Two dot steps of widened bytes by half the products. */
#ifndef QK_CROSSES
#define QK_CROSSES 0
#define qk_dot_crossed(acc, x, y, w, next) (acc)
#endif

/* Dot steps of a run. */
static int64_t qk_steps(const qk_gemm_step *g)
{
    const uint32_t unit = QK_UNIT(g); /* a division of 32 bits: one takes as long as a small product */
    const int64_t steps = ((uint32_t)g->seg_items + unit - 1) / unit;
    return qk_in_tiles(steps + (g->crossed & steps), g->tile);
}

/* Weights of 4 bits, for products of one row, which take as long as their weights take to come: a vector of
 * bytes holds those of two dot steps, counted from the least of their column. QK_NIBBLES is the number of
 * weights from which these kernels are faster than those of bytes. */
#ifndef QK_NIBBLES
#define QK_NIBBLES 0
#endif

/* Bytes of the weights of sixteen columns. */
static int64_t qk_weight_bytes(const qk_gemm_step *g, int64_t steps)
{
    if (g->narrow == QK_FOUR_BITS)
        return 64 + (steps + 1) / 2 * 64;
    return steps * (QK_PAIRS && g->type == QK_S16 && !g->tile ? 32 : 64);
}

/* Whether the rows of a block are copied to the scratch as int16 before they are multiplied. */
#ifdef QK_OWN_TILES
#define qk_copies(g) 1
#else
#define qk_copies(g) (QK_WIDEN && (g)->type == QK_U8 && !(g)->narrow)
#endif

/* Whether there are tiles that write int16. */
#ifndef QK_WORDS
#define QK_WORDS 0
#define qk_word_bounds qk_byte_bounds
#define qk_store_words(...) (void)0
#endif

/* How the sums of a tile become bytes or int16, and where they go: to the rows from `out` on, `offset` further.
 * Before that, `wide` more dot steps of narrow rows, by any weights. */
typedef struct {
    int64_t wide;
    const uint8_t *factors;
    int32_t less;
    qk_bounds bounds;
    uint8_t *const *out;
    int64_t offset;
} qk_bytes;

#ifndef QK_OWN_TILES
enum { QK_KEEP_SUMS, QK_TO_BYTES, QK_TO_WORDS };

/* One tile: named accumulators, because gcc keeps arrays of vectors in memory. */
#define QK_EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

enum { QK_OF_BYTES, QK_OF_NARROW, QK_OF_PAIRS, QK_OF_CROSSED, QK_OF_WIDE };

static inline __attribute__((always_inline)) qk_weight qk_weight_of(const int how, const uint8_t *p)
{
    return how == QK_OF_PAIRS ? qk_load_weight_pairs(p) : qk_load_weight(p);
}
static inline __attribute__((always_inline)) qk_vec qk_dot_of(const int how, qk_vec acc, qk_spread a, qk_weight w)
{
    return how == QK_OF_PAIRS ? qk_dot_spread_pair(acc, a, w) : how == QK_OF_NARROW ? qk_dot_narrow(acc, a, w)
           : how == QK_OF_WIDE  ? qk_dot_wide(acc, a, w)
                                : qk_dot(acc, a, w);
}

static inline __attribute__((always_inline)) void qk_tile(
    const int mr, const int nv, const int how, const int real, const uint8_t *const *rows, const int64_t *segment,
    int64_t segments, int64_t steps, const uint8_t *weight, const int32_t *bias, int32_t *sums, const qk_bytes *b)
{
    const int stride = 16 * nv, size = how == QK_OF_PAIRS ? 32 : 64, crossed = how == QK_OF_CROSSED;
#define QK_DECLARE(r)                                               \
    qk_vec c##r##_0 = qk_load(bias);                                \
    if (crossed && mr > r)                                          \
        c##r##_0 = qk_sub(c##r##_0, qk_all(((const int32_t *)rows[r])[-1])); \
    qk_vec c##r##_1 = nv > 1 ? qk_load(bias + 16) : c##r##_0;       \
    qk_vec c##r##_2 = nv > 2 ? qk_load(bias + 32) : c##r##_0;       \
    qk_vec c##r##_3 = nv > 3 ? qk_load(bias + 48) : c##r##_0;
    QK_EACH_ROW(QK_DECLARE)
#undef QK_DECLARE
    for (int64_t s = 0; s < segments; s++) {
#define QK_START(r) const uint8_t *a##r = rows[mr > r ? r : 0] + segment[s];
        QK_EACH_ROW(QK_START)
#undef QK_START
        for (int64_t k = 0; k < steps; k += 1 + crossed) {
            const qk_weight w0 = qk_weight_of(how, weight);
            const qk_weight w1 = nv > 1 || crossed ? qk_weight_of(how, weight + size) : w0;
            const qk_weight w2 = nv > 2 ? qk_weight_of(how, weight + 2 * size) : w0;
            const qk_weight w3 = nv > 3 ? qk_weight_of(how, weight + 3 * size) : w0;
#define QK_STEP(r)                                                 \
    if (mr > r) {                                                  \
        const uint8_t *const at = a##r + k * 4;                    \
        const qk_spread a = how == QK_OF_PAIRS ? qk_spread_pair(at) : qk_spread4(at); \
        c##r##_0 = crossed ? qk_dot_crossed(c##r##_0, a, qk_spread4(at + 4), w0, w1) : qk_dot_of(how, c##r##_0, a, w0); \
        if (nv > 1) c##r##_1 = qk_dot_of(how, c##r##_1, a, w1);    \
        if (nv > 2) c##r##_2 = qk_dot_of(how, c##r##_2, a, w2);    \
        if (nv > 3) c##r##_3 = qk_dot_of(how, c##r##_3, a, w3);    \
        if (real) {                                                \
            QK_HOLD_VECTOR(c##r##_0);                              \
            if (nv > 1) QK_HOLD_VECTOR(c##r##_1);                  \
            if (nv > 2) QK_HOLD_VECTOR(c##r##_2);                  \
            if (nv > 3) QK_HOLD_VECTOR(c##r##_3);                  \
        }                                                          \
    }
            QK_EACH_ROW(QK_STEP)
#undef QK_STEP
            weight += size * nv * (1 + crossed);
        }
    }
    if (how == QK_OF_NARROW)
        for (int64_t k = steps; k < steps + b->wide; k++, weight += 64) {
            const qk_weight w = qk_load_weight(weight);
#define QK_STEP(r) \
    if (mr > r) c##r##_0 = qk_dot_wide(c##r##_0, qk_spread4(rows[mr > r ? r : 0] + k * 4), w);
            QK_EACH_ROW(QK_STEP)
#undef QK_STEP
        }
    if (real) {
        __asm__ volatile("" : "+r"(b)); /* what b holds is not kept in registers during the loop */
        const qk_vec less = qk_all(b->less);
        const qk_real f0 = qk_load_real(b->factors), f1 = nv > 1 ? qk_load_real(b->factors + 64) : f0;
        const qk_real f2 = nv > 2 ? qk_load_real(b->factors + 128) : f0;
        const qk_real f3 = nv > 3 ? qk_load_real(b->factors + 192) : f0;
        uint8_t *const *out = b->out;
        const int64_t offset = b->offset;
        const qk_bounds bounds = b->bounds;
#define QK_SCALE_ROW(r)                                         \
    if (mr > r) {                                               \
        c##r##_0 = qk_times(c##r##_0, f0, less);                \
        if (nv > 1) c##r##_1 = qk_times(c##r##_1, f1, less);    \
        if (nv > 2) c##r##_2 = qk_times(c##r##_2, f2, less);    \
        if (nv > 3) c##r##_3 = qk_times(c##r##_3, f3, less);    \
    }
        QK_EACH_ROW(QK_SCALE_ROW)
#undef QK_SCALE_ROW
#define QK_AT(r) (out[mr > r ? r : 0] + offset)
        if (real == QK_TO_WORDS) {
#define QK_ROW_WORDS(r) \
    if (mr > r) qk_store_words(nv, QK_AT(r), c##r##_0, c##r##_1, c##r##_2, c##r##_3, bounds);
            QK_EACH_ROW(QK_ROW_WORDS)
#undef QK_ROW_WORDS
            return;
        }
#define QK_ROW_BYTES(r) \
    if (mr > r) qk_store_bytes(nv, QK_AT(r), 0, 0, 0, c##r##_0, c##r##_1, c##r##_2, c##r##_3, bounds);
#define QK_PAIR_BYTES(r, s)                                                                                  \
    if (mr > r)                                                                                              \
        qk_store_bytes(nv, QK_AT(r), mr > s ? QK_AT(s) : QK_AT(r), 0, 0, c##r##_0,                           \
                       nv > 1 ? c##r##_1 : mr > s ? c##s##_0 : c##r##_0, mr > s ? c##s##_0 : c##r##_0,       \
                       mr > s ? c##s##_1 : c##r##_1, bounds);
#define QK_FOUR_BYTES(r, s, t, u)                                                                            \
    if (mr > r)                                                                                              \
        qk_store_bytes(nv, QK_AT(r), mr > s ? QK_AT(s) : QK_AT(r), mr > t ? QK_AT(t) : QK_AT(r),             \
                       mr > u ? QK_AT(u) : QK_AT(r), c##r##_0, mr > s ? c##s##_0 : c##r##_0,                 \
                       mr > t ? c##t##_0 : c##r##_0, mr > u ? c##u##_0 : c##r##_0, bounds);
        if (QK_PACKED == 4 * nv) {
            QK_FOUR_BYTES(0, 1, 2, 3)
            QK_FOUR_BYTES(4, 5, 6, 7)
        } else if (QK_PACKED == 2 * nv) {
            QK_PAIR_BYTES(0, 1)
            QK_PAIR_BYTES(2, 3)
            QK_PAIR_BYTES(4, 5)
            QK_PAIR_BYTES(6, 7)
        } else {
            QK_EACH_ROW(QK_ROW_BYTES)
        }
#undef QK_AT
#undef QK_ROW_BYTES
#undef QK_PAIR_BYTES
#undef QK_FOUR_BYTES
        return;
    }
#define QK_KEEP(r)                                              \
    if (mr > r) {                                               \
        qk_store(sums + r * stride, c##r##_0);                  \
        if (nv > 1) qk_store(sums + r * stride + 16, c##r##_1); \
        if (nv > 2) qk_store(sums + r * stride + 32, c##r##_2); \
        if (nv > 3) qk_store(sums + r * stride + 48, c##r##_3); \
    }
    QK_EACH_ROW(QK_KEEP)
#undef QK_KEEP
}

/* Tiles of mr rows one below the other. */
typedef void (*qk_tile_function)(const uint8_t *const *, int64_t, const int64_t *, int64_t, int64_t, const uint8_t *,
                                 const int32_t *, int32_t *, const qk_bytes *);

#define QK_TILE_NAMED(name, mr, nv, how, real)                                                   \
    static __attribute__((noinline)) void name(                                                  \
        const uint8_t *const *rows, int64_t tiles, const int64_t *segment, int64_t segments,     \
        int64_t steps, const uint8_t *weight, const int32_t *bias, int32_t *sums, const qk_bytes *to) \
    {                                                                                            \
        const int64_t bytes = segments * steps * ((how) == QK_OF_PAIRS ? 32 : 64) * nv;          \
        const int64_t share = tiles > 3 && bytes > 2047 && bytes <= 24576 ? bytes / tiles : 0;   \
        const uint8_t *ahead = weight + bytes; /* the next panel, on its way to the cache */     \
        qk_bytes b = *to;                                                                        \
        for (; tiles > 0; tiles--, rows += mr, sums += mr * 16 * nv, b.out += mr) {              \
            for (int64_t i = 0; i < share; i += 64)                                              \
                __builtin_prefetch(ahead + i, 0, 2);                                             \
            ahead += share;                                                                      \
            qk_tile(mr, nv, how, real, rows, segment, segments, steps, weight, bias, sums, &b); \
        }                                                                                        \
    }
#define QK_TILE_OF(name, mr, nv, how)                                \
    QK_TILE_NAMED(name##mr##_##nv, mr, nv, how, QK_KEEP_SUMS)        \
    QK_TILE_NAMED(name##bytes_##mr##_##nv, mr, nv, how, QK_TO_BYTES) \
    QK_TILE_WORDS(name, mr, nv, how)
#if QK_WORDS
#define QK_TILE_WORDS(name, mr, nv, how) QK_TILE_NAMED(name##words_##mr##_##nv, mr, nv, how, QK_TO_WORDS)
#else
#define QK_TILE_WORDS(name, mr, nv, how)
#endif
#if QK_PAIRS
#define QK_TILE(mr, nv) QK_TILE_OF(qk_tile_, mr, nv, QK_OF_BYTES) QK_TILE_OF(qk_tile_pairs_, mr, nv, QK_OF_PAIRS)
#else
#define QK_TILE(mr, nv) QK_TILE_OF(qk_tile_, mr, nv, QK_OF_BYTES)
#endif
#if QK_NV > 1
#define QK_TILES(nv) QK_TILE(1, nv) QK_TILE(2, nv) QK_TILE(4, nv) QK_TILE(8, nv)
QK_TILES(1) QK_TILES(2) QK_TILES(3)
QK_TILE(1, 4) QK_TILE(2, 4) QK_TILE(4, 4) QK_TILE(6, 4)
#define QK_NAMES(name, nv) {0, name##1_##nv, name##2_##nv, 0, name##4_##nv, 0, 0, 0, name##8_##nv}
#define QK_TABLE(name)                                            \
    {QK_NAMES(name, 1), QK_NAMES(name, 2), QK_NAMES(name, 3),     \
     {0, name##1_4, name##2_4, 0, name##4_4, 0, name##6_4}}
#else
QK_TILE(1, 1) QK_TILE(2, 1) QK_TILE(4, 1) QK_TILE(6, 1)
#define QK_TABLE(name) {{0, name##1_1, name##2_1, 0, name##4_1, 0, name##6_1}}
#endif

/* Tiles whose sums are kept, that write bytes, and that write int16: of QK_ROWS, 4, 2 rows and of one. */
#if QK_WORDS
#define QK_TABLES(name) {QK_TABLE(name), QK_TABLE(name##bytes_), QK_TABLE(name##words_)}
#else
#define QK_TABLES(name) {QK_TABLE(name), QK_TABLE(name##bytes_)}
#endif
static const qk_tile_function qk_tiles[1 + QK_PAIRS][2 + QK_WORDS][QK_NV][9] = {
    QK_TABLES(qk_tile_),
#if QK_PAIRS
    QK_TABLES(qk_tile_pairs_),
#endif
};
#if QK_NARROW
#define QK_NARROW_TILE(name, mr, how)                        \
    QK_TILE_NAMED(name##mr, mr, 1, how, QK_KEEP_SUMS)        \
    QK_TILE_NAMED(name##bytes_##mr, mr, 1, how, QK_TO_BYTES) \
    QK_TILE_NAMED(name##words_##mr, mr, 1, how, QK_TO_WORDS)
#define QK_NARROW_TILES(name, how) QK_NARROW_TILE(name, 1, how) QK_NARROW_TILE(name, 2, how) QK_NARROW_TILE(name, 4, how)
QK_NARROW_TILES(qk_tile_narrow_, QK_OF_NARROW) QK_NARROW_TILE(qk_tile_narrow_, 5, QK_OF_NARROW)
QK_NARROW_TILES(qk_tile_crossed_, QK_OF_CROSSED)
QK_NARROW_TILE(qk_tile_wide_, 1, QK_OF_WIDE)
#define QK_NARROW_NAMES(name, most) {0, name##1, name##2, 0, name##4, name##most}
#define QK_NARROW_TABLE(name, most) \
    {QK_NARROW_NAMES(name, most), QK_NARROW_NAMES(name##bytes_, most), QK_NARROW_NAMES(name##words_, most)}
static const qk_tile_function qk_narrow_tiles[QK_BYTES_OF_ROW + 1][3][6] = {
    QK_NARROW_TABLE(qk_tile_crossed_, 4), /* 5 rows would leave registers */
    [QK_NARROW_PAIRS] = QK_NARROW_TABLE(qk_tile_narrow_, 5),
    [QK_BYTES_OF_ROW] = {{0, qk_tile_wide_1}, {0, qk_tile_wide_bytes_1}, {0, qk_tile_wide_words_1}},
};
#endif

#ifdef QK_I8MM
#include "isa_i8mm.h"
#endif

#ifdef QK_EIGHTS
/* The last vector of a product whose columns are 1 to 8 more than whole vectors: half as wide. */
static inline __attribute__((always_inline)) void qk_tile_of_eight(
    const int mr, const int narrow, const uint8_t *const *rows, const int64_t *segment, int64_t segments, int64_t steps,
    const uint8_t *weight, const int32_t *bias, int32_t *sums, int64_t wide)
{
    const qk_eight start = qk_load_eight(bias);
#define QK_DECLARE(r) qk_eight c##r = start;
    QK_EACH_ROW(QK_DECLARE)
#undef QK_DECLARE
    for (int64_t s = 0; s < segments; s++) {
#define QK_START(r) const uint8_t *a##r = rows[mr > r ? r : 0] + segment[s];
        QK_EACH_ROW(QK_START)
#undef QK_START
        for (int64_t k = 0; k < steps; k++, weight += 32) {
            const qk_eight w = qk_load_eight(weight);
#define QK_STEP(r) \
    if (mr > r) c##r = qk_dot_eight(narrow, c##r, qk_spread4(a##r + k * 4), w);
            QK_EACH_ROW(QK_STEP)
#undef QK_STEP
        }
    }
    for (int64_t k = steps; k < steps + wide; k++, weight += 32) {
        const qk_eight w = qk_load_eight(weight);
#define QK_STEP(r) \
    if (mr > r) c##r = qk_dot_eight_wide(c##r, qk_spread4(rows[mr > r ? r : 0] + k * 4), w);
        QK_EACH_ROW(QK_STEP)
#undef QK_STEP
    }
#define QK_KEEP(r) \
    if (mr > r) qk_store_eight(sums + r * 16, c##r);
    QK_EACH_ROW(QK_KEEP)
#undef QK_KEEP
}

#define QK_TILE_OF_EIGHT(mr, narrow)                                                                          \
    static __attribute__((noinline)) void qk_tile_of_eight_##mr##_##narrow(                                   \
        const uint8_t *const *rows, int64_t tiles, const int64_t *segment, int64_t segments, int64_t steps,   \
        const uint8_t *weight, const int32_t *bias, int32_t *sums, const qk_bytes *b)                         \
    {                                                                                                         \
        for (; tiles > 0; tiles--, rows += mr, sums += mr * 16)                                               \
            qk_tile_of_eight(mr, narrow, rows, segment, segments, steps, weight, bias, sums, narrow ? b->wide : 0); \
    }
QK_TILE_OF_EIGHT(1, 0) QK_TILE_OF_EIGHT(2, 0) QK_TILE_OF_EIGHT(4, 0) QK_TILE_OF_EIGHT(8, 0)
QK_TILE_OF_EIGHT(1, 1) QK_TILE_OF_EIGHT(2, 1) QK_TILE_OF_EIGHT(4, 1) QK_TILE_OF_EIGHT(8, 1)
#define QK_EIGHT_NAMES(n) \
    {0, qk_tile_of_eight_1_##n, qk_tile_of_eight_2_##n, 0, qk_tile_of_eight_4_##n, 0, 0, 0, qk_tile_of_eight_8_##n}
static const qk_tile_function qk_tiles_of_eight[2][9] = {QK_EIGHT_NAMES(0), QK_EIGHT_NAMES(1)};
#endif
#endif /* QK_OWN_TILES */

#ifdef QK_EIGHTS
/* Whether the last vector of a product is half as wide; those of pack steps and of widened pairs are not. */
static int qk_ends_in_eight(const qk_gemm_step *g)
{
    return !g->weight_in_arena && !(QK_PAIRS && g->type == QK_S16) && g->narrow < QK_FOUR_BITS && (g->columns - 1) % 16 < 8;
}
#else
#define qk_ends_in_eight(g) 0
#endif

#ifndef qk_scale_bytes /* as qk_scale, for results that are clipped to 0 .. 255 */
#define qk_scale_bytes qk_scale
#endif

/* x >> bits, halves to even: below is half of the last place less one, odd is 1; both 0 for no bits. */
static inline qk_vec qk_to_even(qk_vec x, qk_vec below, qk_vec odd, qk_vec bits)
{
    return qk_shift_right(qk_add(qk_add(x, below), qk_and(qk_shift_right(x, bits), odd)), bits);
}

/* The sums of one vector of channels, for `rows` rows `stride` apart, to their places. Bytes of four
 * rows are packed and clipped together; the last four may be done twice. */
static inline void qk_finish(const qk_requantize *rq, const uint8_t *blob, int64_t channel, const int32_t *sums,
                             int64_t stride, int64_t rows, uint8_t *const *out, int64_t offset, int n)
{
    const int own = rq->by_channel != 0;
    const qk_vec low = own ? qk_load((const int32_t *)(blob + rq->low) + channel) : qk_all((int32_t)rq->low);
    const qk_vec high = own ? qk_load((const int32_t *)(blob + rq->high) + channel) : qk_all((int32_t)rq->high);
    const qk_bounds bounds = qk_byte_bounds(rq->low < 0 ? 0 : (int)rq->low, rq->high > 255 ? 255 : (int)rq->high);
    const int left = (int)rq->left;
    const int64_t type = rq->type;
#define QK_FINISH_ROWS(change, change_bytes)                                              \
    if (type == QK_U8 && rows >= 4) {                                                     \
        for (int64_t r = 0; r < rows; r += 4) {                                           \
            const int64_t at = r + 4 <= rows ? r : rows - 4;                              \
            const int32_t *const from = sums + at * stride;                               \
            const qk_vec x0 = change_bytes(qk_load(from));                                \
            const qk_vec x1 = change_bytes(qk_load(from + stride));                       \
            const qk_vec x2 = change_bytes(qk_load(from + 2 * stride));                   \
            const qk_vec x3 = change_bytes(qk_load(from + 3 * stride));                   \
            qk_store_rows(out + at, offset, x0, x1, x2, x3, bounds, n);                   \
        }                                                                                 \
        return;                                                                           \
    }                                                                                     \
    for (int64_t r = 0; r < rows; r++) {                                                  \
        const qk_vec x = qk_max(qk_min(change(qk_load(sums + r * stride)), high), low);   \
        if (type == QK_U8)                                                                \
            qk_store_u8(out[r] + offset, x, n);                                           \
        else if (type == QK_S16)                                                          \
            qk_store_s16(out[r] + 2 * offset, x, n);                                      \
        else                                                                              \
            qk_store_s32(out[r] + 4 * offset, x, n);                                      \
    }
    if (rq->kind == QK_FACTOR) {
        const qk_factor f = qk_load_factor((const int32_t *)(blob + rq->mult) + channel,
                                           (const int64_t *)(blob + rq->add) + channel,
                                           (const int32_t *)(blob + rq->shift) + channel);
#define QK_SCALE(x) qk_scale(x, &f)
#define QK_SCALE_BYTES(x) qk_scale_bytes(x, &f)
#define QK_SHIFT_SCALE(x) qk_scale(qk_shift_left(x, left), &f)
        if (left) {
            QK_FINISH_ROWS(QK_SHIFT_SCALE, QK_SHIFT_SCALE)
        } else {
            QK_FINISH_ROWS(QK_SCALE, QK_SCALE_BYTES)
        }
#ifdef QK_REALS
    } else if (rq->kind == QK_REAL) {
        const qk_real factor = qk_load_real(blob + rq->mult + 4 * channel);
        const qk_vec less = qk_all(QK_REAL_BITS - (int32_t)rq->add);
#define QK_TIMES(x) qk_times(x, factor, less)
        QK_FINISH_ROWS(QK_TIMES, QK_TIMES)
#endif
    } else if (rq->kind == QK_SHIFT) {
        const qk_vec half = qk_load((const int32_t *)(blob + rq->mult) + channel);
        const qk_vec bits = qk_load((const int32_t *)(blob + rq->shift) + channel);
#define QK_ROUND(x) qk_shift_right(qk_add(x, half), bits)
        QK_FINISH_ROWS(QK_ROUND, QK_ROUND)
    } else if (rq->kind == QK_EVEN) {
        const qk_vec below = qk_load((const int32_t *)(blob + rq->mult) + channel);
        const qk_vec odd = qk_load((const int32_t *)(blob + rq->add) + channel);
        const qk_vec bits = qk_load((const int32_t *)(blob + rq->shift) + channel);
#define QK_ROUND_TO_EVEN(x) qk_to_even(x, below, odd, bits)
        QK_FINISH_ROWS(QK_ROUND_TO_EVEN, QK_ROUND_TO_EVEN)
    } else {
#define QK_SAME(x) (x)
        QK_FINISH_ROWS(QK_SAME, QK_SAME)
    }
#undef QK_FINISH_ROWS
#undef QK_SCALE
#undef QK_SCALE_BYTES
#undef QK_SHIFT_SCALE
#undef QK_TIMES
#undef QK_ROUND
#undef QK_ROUND_TO_EVEN
#undef QK_SAME
}

/* The same of sums that are only clipped: all vectors of a row. */
static inline void qk_finish_plain(const qk_requantize *rq, const int32_t *sums, int64_t nv, int64_t rows,
                                   uint8_t *const *out, int64_t channel, int64_t columns)
{
    const qk_vec low = qk_all((int32_t)rq->low), high = qk_all((int32_t)rq->high);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < nv; i++, sums += 16) {
            const int64_t at = channel + 16 * i, left = columns - at;
            qk_store_s32(out[r] + 4 * at, qk_max(qk_min(qk_load(sums), high), low), left < 16 ? (int)left : 16);
        }
}

#define QK_BLOCK_BYTES 147456
#define QK_BLOCK_ROWS 240
#define QK_SUM_ROWS 48 /* whose sums are kept before they are requantized; a few more at the end */

/* Rows of one block; `steps` of all segments together. compiler/targets/engine/packing.py: same. */
static int64_t qk_block_rows(int64_t rows, int64_t steps)
{
    if (rows == 1)
        return 1;
    int64_t most = QK_BLOCK_BYTES / (steps * QK_KU * (int64_t)sizeof(qk_act));
    most = most < 24 ? 24 : most > QK_BLOCK_ROWS ? QK_BLOCK_ROWS : most;
    const int64_t blocks = (rows + most - 1) / most;
    return (rows + blocks - 1) / blocks;
}

/* What the sums of a panel of `nv` vectors become, the v-th vector of all groups the first. */
static inline void qk_finish_panel(const qk_gemm_step *g, const qk_memory *m, const int32_t *sums, int64_t nv,
                                   int64_t rows, uint8_t *const *out, int64_t group, int64_t v)
{
    if (g->rq.kind == QK_PLAIN && g->rq.type == QK_S32 && !g->rq.by_channel) {
        qk_finish_plain(&g->rq, sums, nv, rows, out, v * 16, g->columns);
        return;
    }
    for (int64_t i = 0; i < nv; i++) {
        const int64_t channel = (v + i) * 16, left = g->columns - channel;
        qk_finish(&g->rq, m->blob, group * ((g->columns + 15) / 16) * 16 + channel, sums + i * 16, nv * 16, rows, out,
                  channel, left < 16 ? (int)left : 16);
    }
}

#if QK_NIBBLES
/* The sums of a panel: a row by weights that are counted from `least`, and its total times that. */
static inline __attribute__((always_inline)) void qk_four_bits(
    const int nv, const uint8_t *row, int32_t total, int64_t steps, const uint8_t *weight, const int32_t *bias,
    int32_t *sums)
{
    const int32_t *const least = (const int32_t *)weight;
    qk_vec c0 = qk_load(bias), c1 = nv > 1 ? qk_load(bias + 16) : c0, c2 = nv > 2 ? qk_load(bias + 32) : c0;
    qk_vec c3 = nv > 3 ? qk_load(bias + 48) : c0;
    weight += 64 * nv;
    for (int64_t k = 0; k < steps; k += 2, weight += 64 * nv) {
        const qk_spread a = qk_spread4(row + 4 * k), b = qk_spread4(k + 1 < steps ? row + 4 * k + 4 : row);
        c0 = qk_dot_nibbles(c0, a, b, weight); /* of a step too many all weights are 0 */
        if (nv > 1) c1 = qk_dot_nibbles(c1, a, b, weight + 64);
        if (nv > 2) c2 = qk_dot_nibbles(c2, a, b, weight + 128);
        if (nv > 3) c3 = qk_dot_nibbles(c3, a, b, weight + 192);
    }
    const qk_vec all = qk_all(total);
    qk_store(sums, qk_add(c0, qk_mul(all, qk_load(least))));
    if (nv > 1) qk_store(sums + 16, qk_add(c1, qk_mul(all, qk_load(least + 16))));
    if (nv > 2) qk_store(sums + 32, qk_add(c2, qk_mul(all, qk_load(least + 32))));
    if (nv > 3) qk_store(sums + 48, qk_add(c3, qk_mul(all, qk_load(least + 48))));
}
#endif

#ifndef QK_OWN_TILES
/* What a product does with the sums of a tile, and how; where their rows lie is to be filled in. */
static inline int qk_scales(const qk_gemm_step *g, qk_bytes *bytes)
{
    const int words = QK_WORDS && g->rq.type == QK_S16 && !g->rq.by_channel;
    bytes->wide = g->wide;
    bytes->less = QK_REAL_BITS - (int32_t)g->rq.add;
    bytes->bounds = (words ? qk_word_bounds : qk_byte_bounds)((int)g->rq.low, (int)g->rq.high);
    if (g->rq.kind != QK_REAL)
        return QK_KEEP_SUMS;
    return words ? QK_TO_WORDS : g->rq.type == QK_U8 ? QK_TO_BYTES : QK_KEEP_SUMS;
}

/* The tiles of a panel by their rows, of which the largest have `most`. */
static inline const qk_tile_function *qk_tiles_of(const qk_gemm_step *g, int64_t nv, int real, int eight, int64_t *most)
{
    *most = QK_ROWS(nv);
#ifdef QK_EIGHTS
    if (eight) {
        *most = 8;
        return qk_tiles_of_eight[g->narrow];
    }
#endif
#ifdef QK_I8MM
    if (g->tile)
        return qk_tiles_of_rows[real];
#endif
#if QK_NARROW
    if (g->narrow || g->crossed) {
        *most = 5 - g->crossed;
        return qk_narrow_tiles[g->narrow][real];
    }
#endif
    (void)eight;
    return qk_tiles[QK_PAIRS && g->type == QK_S16][real][nv - 1];
}

/* A product of one row in each group, with one run of elements. */
static void qk_run_row(const qk_gemm_step *g, const qk_memory *m)
{
    const int64_t unit = QK_UNIT(g), steps = (g->seg_items + unit - 1) >> unit / 2, start = 0;
    const int64_t vectors = (g->columns + 15) / 16, panels = (vectors + QK_NV - 1) / QK_NV;
    const int64_t least = (uint32_t)vectors / (uint32_t)panels, wide = vectors - least * panels;
    int32_t sums[16 * QK_NV] __attribute__((aligned(64)));
    qk_bytes bytes;
    const int ends = qk_scales(g, &bytes);
    for (int64_t group = 0; group < g->groups; group++) {
        const uint8_t *row = m->arena + g->source + group * g->in_group;
        const uint8_t *weight = (g->weight_in_arena ? m->arena : m->blob) + g->weight + group * g->weight_group;
        const int32_t *bias = (const int32_t *)((g->bias_in_arena ? m->arena : m->blob) + g->bias) + group * vectors * 16;
        uint8_t *const out = m->arena + g->out + group * g->out_group;
#if QK_NIBBLES
        uint32_t total = 0;
        for (int64_t k = 0; g->narrow == QK_FOUR_BITS && k < g->seg_items; k++)
            total += row[k];
#endif
#if QK_WIDEN
        if (qk_copies(g) && g->narrow != QK_FOUR_BITS) {
            qk_widen((qk_act *)(m->arena + g->scratch), row, steps * QK_KU);
            row = m->arena + g->scratch;
        }
#endif
        bytes.out = &out;
        for (int64_t p = 0, v = 0, nv; p < panels; p++, v += nv) {
            nv = least + (p < wide);
            const int eight = qk_ends_in_eight(g) && p == panels - 1;
            int real = g->columns >= (v + nv) * 16 && !eight ? ends : QK_KEEP_SUMS;
            int64_t most;
#if QK_NIBBLES
            if (g->narrow == QK_FOUR_BITS) {
                real = QK_KEEP_SUMS;
                switch (nv) {
#if QK_NV > 1
                case 4: qk_four_bits(4, row, (int32_t)total, steps, weight, bias + v * 16, sums); break;
                case 3: qk_four_bits(3, row, (int32_t)total, steps, weight, bias + v * 16, sums); break;
                case 2: qk_four_bits(2, row, (int32_t)total, steps, weight, bias + v * 16, sums); break;
#endif
                default: qk_four_bits(1, row, (int32_t)total, steps, weight, bias + v * 16, sums);
                }
            } else
#endif
            {
                bytes.factors = m->blob + g->rq.mult + 4 * (group * vectors + v) * 16;
                bytes.offset = v * 16 * qk_size_of(g->rq.type);
                qk_tiles_of(g, nv, real, eight, &most)[1](&row, 1, &start, 1, steps - g->wide, weight,
                                                             bias + v * 16, sums, &bytes);
            }
            weight += nv * qk_weight_bytes(g, steps);
            if (!real)
                qk_finish_panel(g, m, sums, nv, 1, &out, group, v);
        }
    }
}
#endif

static void qk_run_gemm(const qk_gemm_step *g, const qk_memory *m)
{
#ifndef QK_OWN_TILES
    if (g->height * g->width * g->seg_y * g->seg_x == 1 && !g->crossed && !g->tile) {
        qk_run_row(g, m);
        return;
    }
#endif
    const int64_t rows = g->height * g->width, steps = qk_steps(g), segments = g->seg_y * g->seg_x;
    const int64_t block = qk_block_rows(rows, steps * segments + g->crossed);
    const int64_t vectors = (g->columns + 15) / 16, panels = (vectors + QK_NV - 1) / QK_NV;
    const int64_t least = (uint32_t)vectors / (uint32_t)panels, wide = vectors - least * panels; /* the first `wide` have one more */
    int64_t segment[QK_MAX_SEGMENTS];
    const uint8_t *start[QK_BLOCK_ROWS];
    uint8_t *out[QK_BLOCK_ROWS];
    int32_t sums[(QK_SUM_ROWS + QK_MAX_ROWS) * 16 * QK_NV] __attribute__((aligned(64)));
#ifndef QK_OWN_TILES
    const int64_t *runs = segment;
    int64_t count_of = segments, length = steps - g->wide;
    qk_bytes bytes;
    const int ends = qk_scales(g, &bytes);
    const int64_t size = qk_size_of(g->rq.type);
    uint8_t beyond[(1 + QK_WORDS) * QK_BLOCK_ROWS * 16 * QK_NV]; /* rows of the last panel, if it is not full */
    uint8_t *aside[QK_BLOCK_ROWS];
    for (int64_t r = 0; r < block && ends && g->columns % 16; r++)
        aside[r] = beyond + r * 16 * QK_NV * size;
#endif

    segment[0] = 0;
    for (int64_t s = 1; s < segments; s++)
        segment[s] = s / g->seg_x * g->seg_row + s % g->seg_x * g->seg_pixel;
#if QK_WIDEN /* rows that lie one behind the other are widened at once */
    const int copies = qk_copies(g), pairs = g->type == QK_S16;
    const int together = copies && !pairs && !g->crossed && segments == 1 && g->in_pixel == steps * QK_KU &&
                         (g->height == 1 || g->in_row == g->width * g->in_pixel);
#ifndef QK_OWN_TILES
    int64_t in_widened[QK_MAX_SEGMENTS];
    for (int64_t s = 0; s < segments; s++)
        in_widened[s] = segment[s] * (int64_t)sizeof(qk_act);
#endif
#endif
    for (int64_t group = 0; group < g->groups; group++) {
        const uint8_t *in = m->arena + g->source + group * g->in_group;
        const uint8_t *weights =
            (g->weight_in_arena ? m->arena : m->blob) + g->weight + group * g->weight_group;
        const int32_t *bias = (const int32_t *)((g->bias_in_arena ? m->arena : m->blob) + g->bias) +
                              group * vectors * 16;
        for (int64_t first = 0; first < rows; first += block) {
            const int64_t count = rows - first < block ? rows - first : block;
            int64_t y = first ? first / g->width : 0, x = first - y * g->width;
#if QK_WIDEN
            if (together)
                qk_widen((qk_act *)(m->arena + g->scratch), in + first * g->in_pixel, count * steps * QK_KU);
#endif
            for (int64_t r = 0; r < count; y++, x = 0) { /* runs of pixels of one row */
                const uint8_t *from = in + y * g->in_row + x * g->in_pixel;
                uint8_t *to = m->arena + g->out + group * g->out_group + y * g->out_row + x * g->out_pixel;
                const int64_t stop = count - r < g->width - x ? count : r + g->width - x;
                for (; r < stop; r++, from += g->in_pixel, to += g->out_pixel) {
                    start[r] = from;
                    out[r] = to;
                }
            }
#if QK_WIDEN
            qk_act *const widened = (qk_act *)(m->arena + g->scratch);
            int band = 0; /* windows overlap: all bytes between the first and the last are widened once */
#ifndef QK_OWN_TILES
            const int64_t top = first ? first / g->width : 0;
            const int64_t bottom = rows > 1 ? (first + count - 1) / g->width : 0;
            const int64_t bytes_between = (bottom - top) * g->in_row + (g->width - 1) * g->in_pixel +
                                          segment[segments - 1] + g->seg_items;
            band = segments > 1 && copies && bytes_between <= count * steps * segments * QK_KU;
            if (band) {
                qk_widen(widened, in + top * g->in_row, bytes_between);
                for (int64_t r = 0; r < count; r++)
                    start[r] = (const uint8_t *)(widened + (start[r] - in - top * g->in_row));
            }
            runs = copies ? in_widened : segment; /* the first one is 0 */
            count_of = band || !copies ? segments : 1;
            length = band || !copies ? steps - g->wide : steps * segments;
#endif
            for (int64_t r = 0; r < count && copies && !band; r++) {
                qk_act *to = widened + r * (steps * segments + g->crossed) * QK_KU;
#if QK_CROSSES
                if (g->crossed) {
                    *(int32_t *)to = qk_widen_crossed(to + QK_KU, start[r], steps * QK_KU);
                    start[r] = (const uint8_t *)(to + QK_KU);
                    continue;
                }
#endif
                for (int64_t s = 0; !together && s < segments; s++) {
                    const uint8_t *from = start[r] + segment[s];
                    if (pairs)
                        memmove(to + s * steps * QK_KU, from, (size_t)(steps * QK_KU) * sizeof(qk_act));
                    else
                        qk_widen(to + s * steps * QK_KU, from, steps * QK_KU);
                }
                start[r] = (const uint8_t *)to;
            }
#endif
            for (int64_t p = 0, v = 0; p < panels; p++) {
                const int64_t nv = least + (p < wide);
                const uint8_t *weight = weights + v * qk_weight_bytes(g, steps * segments);
                for (int64_t r = 0, n; r < count; r += n) {
                    n = count - r <= QK_SUM_ROWS + QK_MAX_ROWS ? count - r : QK_SUM_ROWS;
#ifdef QK_OWN_TILES
                    qk_own_tile(n, start + r, steps * segments, weight, bias + v * 16, sums);
#else
                    const int eight = qk_ends_in_eight(g) && p == panels - 1, real = eight ? QK_KEEP_SUMS : ends;
                    int64_t most;
                    const qk_tile_function *of = qk_tiles_of(g, nv, real, eight, &most);
                    const int64_t left = g->columns - v * 16;
                    const int whole = left >= nv * 16;
                    if (real) {
                        n = count;
                        bytes.factors = m->blob + g->rq.mult + 4 * (group * vectors + v) * 16;
                        bytes.out = whole ? out : aside;
                        bytes.offset = whole ? v * 16 * size : 0;
                    }
                    for (int64_t i = 0, rows_left; (rows_left = n - i) > 0;) {
                        const int64_t mr = rows_left >= most ? most : rows_left >= 4 ? 4 : rows_left >= 2 ? 2 : 1;
                        const int64_t tiles = mr == most ? rows_left / mr : 1;
                        of[mr](start + r + i, tiles, runs, count_of, length, weight, bias + v * 16, sums + i * nv * 16,
                               &bytes);
                        bytes.out += tiles * mr;
                        i += tiles * mr;
                    }
                    for (int64_t i = 0; real && !whole && i < n; i++) {
                        int64_t k = 0;
                        for (; k + 8 <= left * size; k += 8)
                            memcpy(out[i] + v * 16 * size + k, aside[i] + k, 8);
                        for (; k < left * size; k++)
                            out[i][v * 16 * size + k] = aside[i][k];
                    }
                    if (real)
                        break;
#endif
                    qk_finish_panel(g, m, sums, nv, n, out + r, group, v);
                }
                v += nv;
            }
        }
    }
}

#if QK_WEIGHT_BYTES == 1
typedef int8_t qk_packed;
#else
typedef int16_t qk_packed;
#endif

/* The bias of one panel: minus comp times the sum of a column. */
static void qk_pack_bias(int32_t comp, const uint8_t *panel, int64_t nv, int64_t steps, int32_t *bias)
{
#ifdef QK_OWN_TILES
    for (int64_t n = 0; n < nv * 16; n++) {
        int32_t sum = 0;
        for (int64_t k = 0; k < steps * QK_KU; k++)
            sum += ((const qk_packed *)panel)[QK_WEIGHT_PLACE(k, n, nv, steps)];
        bias[n] = -comp * sum;
    }
#else
    qk_act ones[4 / sizeof(qk_act)];
    for (int i = 0; i < QK_KU; i++)
        ones[i] = QK_ACT_SHIFT + 1;
    const qk_spread one = qk_spread4(ones);
    for (int64_t v = 0; v < nv; v++) {
        qk_vec sum = qk_all(0);
        for (int64_t k = 0; k < steps; k++)
            sum = qk_dot(sum, one, qk_load_weight(panel + (k * nv + v) * 64));
        qk_store(bias + v * 16, qk_mul(sum, qk_all(-comp)));
    }
#endif
}

static int64_t qk_pack_steps(const qk_pack_step *p) { return qk_in_tiles((p->k + QK_KU - 1) / QK_KU, p->tile); }

/* One panel of the right operand [k][columns] of a product of two activations. Columns that lie side by
 * side are moved together, and so are four reduced elements. */
static void qk_pack_panel(const qk_pack_step *p, const uint8_t *restrict in, qk_packed *restrict to, int64_t nv,
                          int64_t columns)
{
    const int64_t steps = qk_pack_steps(p), across = p->stride_n, down = p->stride_k;
    const int32_t zero = (int32_t)p->zero;
#ifdef QK_I8MM
#define QK_PACK_PLACE(k, n) (p->tile ? ((k) / 8 * 16 + (n)) * 8 + (k) % 8 : QK_WEIGHT_PLACE(k, n, nv, steps))
#else
#define QK_PACK_PLACE(k, n) QK_WEIGHT_PLACE(k, n, nv, steps)
#endif
    if (p->k < steps * QK_KU || columns < nv * 16)
        memset(to, 0, (size_t)(steps * nv * 64));
    for (int64_t k = 0; k < p->k; k += QK_KU) {
        const int64_t units = p->k - k < QK_KU ? p->k - k : QK_KU;
        const uint8_t *from = in + k * down;
#define QK_PACK_STEP(units, across)                                                                           \
    for (int64_t n = 0; n < columns; n++)                                                                     \
        for (int64_t i = 0; i < (units); i++)                                                                 \
            to[QK_PACK_PLACE(k + i, n)] = (qk_packed)(from[i * down + n * (across)] - zero);
        if (QK_KU * sizeof(*to) == 4 && sizeof(*to) == 1 && down == 1 && units == QK_KU && (zero & 127) == 0)
            for (int64_t n = 0; n < columns; n++) {
                uint32_t four;
                memcpy(&four, from + n * across, 4);
                four ^= (uint32_t)zero * 0x01010101u; /* minus 128 in every byte */
                memcpy(to + QK_PACK_PLACE(k, n), &four, 4);
            }
        else if (across == 1 && units == QK_KU)
            QK_PACK_STEP(QK_KU, 1)
        else
            QK_PACK_STEP(units, across)
#undef QK_PACK_STEP
    }
}

static void qk_run_pack(const qk_pack_step *p, const qk_memory *m)
{
    const int64_t vectors = (p->columns + 15) / 16, most = p->tile ? 1 : QK_NV, panels = (vectors + most - 1) / most;
    const int64_t wide = vectors % panels, narrow = vectors / panels, steps = qk_pack_steps(p);
    for (int64_t group = 0; group < p->groups; group++) {
        const uint8_t *in = m->arena + p->source + group * p->in_group;
        int32_t *bias = (int32_t *)(m->arena + p->bias) + group * vectors * 16;
        for (int64_t q = 0, v = 0; q < panels; q++) {
            const int64_t nv = narrow + (q < wide);
            const int64_t left = p->columns - v * 16;
            uint8_t *panel = m->arena + p->weight + group * p->weight_group + v * steps * 64;
            qk_pack_panel(p, in + v * 16 * p->stride_n, (qk_packed *)panel, nv, left < nv * 16 ? left : nv * 16);
#ifdef QK_I8MM
            if (p->tile)
                qk_bias_of_tiles((int32_t)p->comp, panel, steps, bias + v * 16);
            else
#endif
            qk_pack_bias((int32_t)p->comp, panel, nv, steps, bias + v * 16);
            v += nv;
        }
    }
}
