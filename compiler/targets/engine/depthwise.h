/* Depthwise convolution, up to four output rows at a time.
 *
 * The rows that the windows of `together` output rows cover are interleaved once for every input
 * column, so that one dot step takes `unit` vertical taps of sixteen channels and serves all these
 * output rows: QK_KU bytes, or two int16. Weights, bytes or int16, lie as
 * [16 channels][kernel_x][rows / unit][output row][channel][unit]; what an output row does not read
 * has the weight 0.
 *
 * Any step: the sums of sixteen channels go to the first-level cache and are requantized there.
 * Bytes and int16 by factors, windows of 3 x 3 and 5 x 5 (block > 1): sums stay in registers. The
 * `block` lanes of 16 bytes of a register are interleaved and packed each by itself, so channel
 * 4 j + k of lane l has place 4 (block j + l) + k among the 16 * block places of a block. A lane is sixteen
 * channels of a pixel; where fewer than `block` are left, 2 or 4 pixels some way apart fill the lanes.
 */
#include "step.h"

#ifdef QK_OWN_TILES
#define QK_TOGETHER 1
#define QK_LEAST_PIXELS 1
#else
#define QK_TOGETHER 4
#define QK_LEAST_PIXELS 4
#endif
#define QK_ROW_PIXELS 32

/* Input rows of a pass: those of one window, and stride_y more for every further output row. */
static int64_t qk_lines(const qk_depthwise_step *d) { return (d->together - 1) * d->stride_y + d->kernel_y; }

/* Vertical taps of a dot step, and the dot steps that take the rows of a pass. */
static int64_t qk_unit(const qk_depthwise_step *d) { return d->type == QK_S16 ? 2 : QK_KU; }
static int64_t qk_line_groups(const qk_depthwise_step *d)
{
    const int64_t lines = qk_lines(d);
    return d->type == QK_S16 ? (lines + 1) / 2 : (lines + QK_KU - 1) / QK_KU; /* no division by a variable */
}

#ifndef QK_OWN_TILES
#ifndef QK_DOT_TAPS
#define QK_DOT_TAPS qk_dot
#define QK_TAPS qk_spread
#endif

#ifndef QK_PARTS /* all sixteen channels at once; else registers of a part of them */
#define QK_PARTS 1
typedef qk_vec qk_part;
typedef QK_TAPS qk_part_taps;
typedef qk_weight qk_part_weight;
#define qk_load_part qk_load
#define qk_store_part_sums qk_store
#define qk_load_part_taps qk_load_taps
#define qk_load_part_weight qk_load_weight
#define qk_dot_part QK_DOT_TAPS
#define QK_HOLD(x) (void)0
#endif

#if QK_KU == 2 /* bytes are int16 here as well */
#define qk_dot_unit(unit, acc, x, w) ((void)(unit), qk_dot_part(acc, x, w))
#else
#define qk_dot_unit(unit, acc, x, w) ((unit) == 2 ? qk_dot_pairs(acc, x, w) : qk_dot_part(acc, x, w))
#endif

#define QK_EACH_PIXEL(X) X(0) X(1) X(2) X(3)
#define QK_DECLARE(p) qk_part r0_##p = start, r1_##p = start, r2_##p = start, r3_##p = start;

/* Sums of `pixels` neighbours in `rows` output rows; a pixel's taps are `runs` runs of `count`. */
static inline __attribute__((always_inline)) void qk_taps(
    const int unit, const int rows, const int pixels, const uint8_t *const *pixel, int64_t runs, int64_t run_bytes,
    int64_t count, const uint8_t *w, const int32_t *bias, int32_t *sums, int64_t pitch)
{
    const qk_part start = qk_load_part(bias);
    QK_EACH_PIXEL(QK_DECLARE)
#define QK_START(p) const uint8_t *x##p = pixel[pixels > p ? p : 0];
    QK_EACH_PIXEL(QK_START)
#undef QK_START
    for (int64_t run = 0; run < runs; run++) {
        for (int64_t t = 0; t < count * 64; t += 64, w += 64 * rows) {
            const qk_part_weight w0 = qk_load_part_weight(w);
            const qk_part_weight w1 = rows > 1 ? qk_load_part_weight(w + 64) : w0;
            const qk_part_weight w2 = rows > 2 ? qk_load_part_weight(w + 128) : w0;
            const qk_part_weight w3 = rows > 3 ? qk_load_part_weight(w + 192) : w0;
#define QK_STEP(p)                                              \
    if (pixels > p) {                                           \
        qk_part_taps x = qk_load_part_taps(x##p + t);           \
        if (rows > 1) QK_HOLD(x);                               \
        r0_##p = qk_dot_unit(unit, r0_##p, x, w0);              \
        if (rows > 1) r1_##p = qk_dot_unit(unit, r1_##p, x, w1); \
        if (rows > 2) r2_##p = qk_dot_unit(unit, r2_##p, x, w2); \
        if (rows > 3) r3_##p = qk_dot_unit(unit, r3_##p, x, w3); \
    }
            QK_EACH_PIXEL(QK_STEP)
#undef QK_STEP
        }
#define QK_NEXT(p) x##p += run_bytes;
        QK_EACH_PIXEL(QK_NEXT)
#undef QK_NEXT
    }
#define QK_KEEP(p)                                                                     \
    if (pixels > p) {                                                                  \
        qk_store_part_sums(sums + p * 16, r0_##p);                                     \
        if (rows > 1) qk_store_part_sums(sums + (pitch + p) * 16, r1_##p);     \
        if (rows > 2) qk_store_part_sums(sums + (2 * pitch + p) * 16, r2_##p); \
        if (rows > 3) qk_store_part_sums(sums + (3 * pitch + p) * 16, r3_##p); \
    }
    QK_EACH_PIXEL(QK_KEEP)
#undef QK_KEEP
}

/* Sums of `pitch` pixels, at least four: beyond `width` the first again. The last ones are computed
 * again rather than by a loop of their own. */
#define QK_TAP_ROWS(name, unit, rows, pixels)                                                               \
    static __attribute__((noinline)) void name(                                                             \
        const uint8_t *mixed, int64_t step, int64_t width, int64_t runs, int64_t run_bytes, int64_t count,  \
        const uint8_t *weight, const int32_t *bias, int32_t *sums, int64_t pitch)           \
    {                                                                                                       \
        for (int64_t x = 0; x < pitch; x += pixels) {                                                       \
            const int64_t at = x + pixels <= pitch ? x : pitch - pixels;                                    \
            for (int part = 0; part < QK_PARTS; part++) {                                                   \
                const int place = part * 64 / QK_PARTS, first = part * 16 / QK_PARTS;                       \
                const uint8_t *pixel[pixels];                                                               \
                for (int64_t i = 0; i < pixels; i++)                                                        \
                    pixel[i] = mixed + place + (at + i < width ? at + i : 0) * step;            \
                qk_taps(unit, rows, pixels, pixel, runs, run_bytes, count, weight + place, bias + first,    \
                        sums + at * 16 + first, pitch);                                                 \
            }                                                                                               \
        }                                                                                                   \
    }
QK_TAP_ROWS(qk_taps_1, QK_KU, 1, 4)
QK_TAP_ROWS(qk_taps_2, QK_KU, 2, QK_PAIR_PIXELS)
QK_TAP_ROWS(qk_taps_3, QK_KU, 3, QK_FOUR_PIXELS)
QK_TAP_ROWS(qk_taps_4, QK_KU, 4, QK_FOUR_PIXELS)
#if QK_KU == 2
#define qk_taps_pairs_1 qk_taps_1
#define qk_taps_pairs_2 qk_taps_2
#else
QK_TAP_ROWS(qk_taps_pairs_1, 2, 1, 4)
QK_TAP_ROWS(qk_taps_pairs_2, 2, 2, QK_PAIR_PIXELS)
#endif
#endif /* QK_OWN_TILES */

static void qk_run_taps(const qk_depthwise_step *d, const qk_memory *m)
{
    const int64_t lines = qk_lines(d), groups = qk_line_groups(d), together = d->together, unit = qk_unit(d);
    const int64_t size = qk_size_of(d->type);
    const int64_t beyond = (d->kernel_x - 1) * d->dilation_x + 1; /* columns of one window */
    const int64_t runs = d->dilation_x > 1 ? d->kernel_x : 1, count = groups * d->kernel_x / runs;
    const int64_t step = d->stride_x * groups * 64, run_bytes = d->dilation_x * groups * 64;
    uint8_t *mixed = m->arena + d->scratch;
    int32_t sums[QK_TOGETHER * QK_ROW_PIXELS * 16] __attribute__((aligned(64)));
    uint8_t *out[QK_TOGETHER * QK_ROW_PIXELS];

    for (int64_t next = 0; next < d->height; next += together) {
        const int64_t y = next + together <= d->height ? next : d->height - together;
        for (int64_t first = 0; first < d->width; first += QK_ROW_PIXELS) {
            const int64_t left = d->width - first, width = left < QK_ROW_PIXELS ? left : QK_ROW_PIXELS;
            const int64_t pitch = width < QK_LEAST_PIXELS ? QK_LEAST_PIXELS : width; /* a short row repeats its first */
            const int64_t columns = (width - 1) * d->stride_x + beyond;
            for (int64_t r = 0; r < together; r++)
                for (int64_t x = 0; x < pitch; x++)
                    out[r * pitch + x] = m->arena + d->out + (y + r) * d->out_row +
                                         (first + (x < width ? x : 0)) * d->out_pixel;
            for (int64_t channel = 0; channel < d->channels; channel += 16) {
                const uint8_t *in = m->arena + d->source + y * d->stride_y * d->in_row + channel * size +
                                    first * d->stride_x * d->in_pixel;
                const uint8_t *weight = m->blob + d->weight + channel / 16 * d->kernel_x * groups * together * 64;
                const int32_t *bias = (const int32_t *)(m->blob + d->bias) + channel;
                const int n = d->channels - channel < 16 ? (int)(d->channels - channel) : 16;

                for (int64_t g = 0; g < groups; g++) {
                    const uint8_t *row[QK_KU]; /* at least `unit` of them */
                    for (int64_t i = 0; i < QK_KU; i++) {
                        const int64_t line = g * unit + i; /* a line beyond the last has weight 0 */
                        row[i] = in + (line < lines ? line : 0) * d->dilation_y * d->in_row;
                    }
                    for (int64_t x = 0; x < columns; x++) {
                        if (d->type == QK_S16)
                            qk_interleave_pairs(mixed + (x * groups + g) * 64, row);
                        else
                            qk_interleave(mixed + (x * groups + g) * 64, row);
                        for (int64_t i = 0; i < QK_KU; i++)
                            row[i] += d->in_pixel;
                    }
                }
#ifdef QK_OWN_TILES
                qk_own_taps(mixed, step, width, runs, run_bytes, count, weight, bias, sums);
#else
                switch (d->type == QK_S16 ? -together : together) {
                case -1: qk_taps_pairs_1(mixed, step, width, runs, run_bytes, count, weight, bias, sums, pitch); break;
                case -2: qk_taps_pairs_2(mixed, step, width, runs, run_bytes, count, weight, bias, sums, pitch); break;
                case 1: qk_taps_1(mixed, step, width, runs, run_bytes, count, weight, bias, sums, pitch); break;
                case 2: qk_taps_2(mixed, step, width, runs, run_bytes, count, weight, bias, sums, pitch); break;
                case 3: qk_taps_3(mixed, step, width, runs, run_bytes, count, weight, bias, sums, pitch); break;
                default: qk_taps_4(mixed, step, width, runs, run_bytes, count, weight, bias, sums, pitch);
                }
#endif
                qk_finish(&d->rq, m->blob, channel, sums, 16, together * pitch, out, channel, n);
            }
        }
    }
}

#if QK_LANES_16 > 1
#define QK_FILL_BYTES (QK_LANES_16 * 16) /* a register */
#define QK_SHARE 16                    /* pixels of a lane in a strip, up to 4 more in the last */
#define QK_MOST_SHARE 20

/* One block of channels: its constants, and where a pixel of four neighbours goes. */
typedef struct qk_block qk_block;
typedef void (*qk_fill_function)(const qk_block *, const uint8_t *const *, int64_t, uint8_t *, uint8_t *, int64_t);
struct qk_block {
    const uint8_t *weight, *factors; /* factors: float32, or 0 */
    const int32_t *bias, *mult, *shift;
    const int64_t *add;
    int32_t less;
    int64_t out_row, out_pixel, apart[4]; /* apart: from the first lane to those of the other pixels */
    int64_t shared, n;                    /* pixels that share a register, bytes of each */
    int clips;                            /* 0: the bounds are those of the type */
    qk_bounds bounds;
    int64_t size;                         /* of an output: 1 or 2 bytes */
    const uint8_t *limits;                /* bounds of int16 as they lie in registers: low ones, then high ones */
    const qk_fill_function *fills, *last; /* by pixels; last: for fewer rows, or 0 */
};

/* Registers whose lanes go to several pixels, or that are not full. */
static __attribute__((noinline)) void qk_store_shared(const qk_block *b, uint8_t *out, const uint8_t *from, int64_t pixels)
{
    const int64_t apart = (b->shared == 4 ? 16 : QK_FILL_BYTES / 2) * b->size;
    for (int64_t p = 0; p < pixels; p++, out += b->out_pixel, from += QK_FILL_BYTES * b->size)
        for (int64_t i = 0; i < b->shared; i++) {
            const uint8_t *const part = from + apart * i;
            if (b->n == 16)
                memcpy(out + b->apart[i], part, 16);
            else if (b->n == 32)
                memcpy(out + b->apart[i], part, 32);
            else
                memcpy(out + b->apart[i], part, (size_t)b->n);
        }
}

/* Results of four pixels, as bytes or as int16. */
static inline __attribute__((always_inline)) void qk_pack_sums(const int wide, uint8_t *to, qk_part x0, qk_part x1,
                                                               qk_part x2, qk_part x3)
{
    if (wide) {
        qk_pack_pair(to, x0, x1);
        qk_pack_pair(to + 4 * QK_FILL_BYTES, x2, x3);
    } else {
        qk_pack_pixels(to, x0, x1, x2, x3);
    }
}

/* `pixels` neighbours in `rows` of `together` output rows. Everything about the window is known when
 * this is compiled: a column is loaded once and moves on from pixel to pixel, a weight is loaded for all
 * pixels, and weights of 0 for lines beyond a window are left out. The empty asm keeps the compiler
 * from holding more weights than there are registers. */
static inline __attribute__((always_inline)) void qk_fill(
    const int wide, const int unit, const int kernel, const int stride, const int together, const int rows, const int pixels,
    const qk_block *b, const uint8_t *const *group, int64_t at, uint8_t *bytes, uint8_t *out, int64_t valid)
{
    const int groups = ((together - 1) * stride + kernel + unit - 1) / unit;
    const uint8_t *g0 = group[0] + at, *g1 = groups > 1 ? group[1] + at : g0;
    const uint8_t *g2 = groups > 2 ? group[2] + at : g0, *g3 = groups > 3 ? group[3] + at : g0;
    const uint8_t *weight = b->weight;
    const int32_t *bias = b->bias;
    const qk_part less = qk_all_parts(b->less);
    const int64_t whole = QK_FILL_BYTES << wide;
    for (int64_t j = 0; j < 4; j++) {
        const int64_t place = j * QK_FILL_BYTES;
        const qk_part start = qk_load_part(bias + place / 4);
        const uint8_t *w = weight + j / QK_PARTS * groups * kernel * together * 64 + j % QK_PARTS * QK_FILL_BYTES;
        QK_EACH_PIXEL(QK_DECLARE)
#define QK_COLUMN(y, c)                                                                                     \
    y = qk_load_part_taps((g == 0 ? g0 : g == 1 ? g1 : g == 2 ? g2 : g3) + place + (c) * 4 * QK_FILL_BYTES); \
    QK_HOLD(y);
#define QK_ROW(n)                                                                                       \
    if (rows > n && g * unit < n * stride + kernel && (g + 1) * unit > n * stride) {                    \
        qk_part_weight v = qk_load_part_weight(w + ((t * groups + g) * together + n) * 64);             \
        QK_HOLD(v);                                                                                     \
        r##n##_0 = qk_dot_unit(unit, r##n##_0, y0, v);                                                  \
        r##n##_1 = qk_dot_unit(unit, r##n##_1, y1, v);                                                  \
        r##n##_2 = qk_dot_unit(unit, r##n##_2, y2, v);                                                  \
        if (pixels > 3) r##n##_3 = qk_dot_unit(unit, r##n##_3, y3, v);                                  \
    }
#pragma GCC unroll 4
        for (int g = 0; g < groups; g++) {
#pragma GCC unroll 2
            for (int first = 0; first < stride; first++) {
                qk_part_taps y0, y1, y2, y3;
                QK_COLUMN(y1, first)
                QK_COLUMN(y2, first + stride)
                QK_COLUMN(y3, first + 2 * stride)
#pragma GCC unroll 8
                for (int t = first; t < kernel; t += stride) {
                    y0 = y1;
                    y1 = y2;
                    y2 = y3;
                    QK_COLUMN(y3, t + 3 * stride)
                    QK_ROW(0) QK_ROW(1) QK_ROW(2) QK_ROW(3)
                    __asm__("" : "+r"(w));
                }
            }
        }
#undef QK_COLUMN
#undef QK_ROW
#define QK_PACK_ROW(n, change)                                                                      \
    if (rows > n)                                                                                   \
        qk_pack_sums(wide, bytes + n * 4 * whole + j * QK_FILL_BYTES, change(r##n##_0), change(r##n##_1), \
                     change(r##n##_2), pixels > 3 ? change(r##n##_3) : r##n##_3);
        if (b->factors) {
            const qk_part_real f = qk_load_part_real(b->factors + place);
#define QK_TIMES(x) qk_times_part(x, f, less)
            QK_PACK_ROW(0, QK_TIMES) QK_PACK_ROW(1, QK_TIMES) QK_PACK_ROW(2, QK_TIMES) QK_PACK_ROW(3, QK_TIMES)
#undef QK_TIMES
        } else {
            const int64_t at_place = place / 4;
            const qk_part_factor f = qk_load_part_factor(b->mult + at_place, b->add + at_place, b->shift + at_place);
#define QK_SCALE(x) qk_scale_part(x, &f)
            QK_PACK_ROW(0, QK_SCALE) QK_PACK_ROW(1, QK_SCALE) QK_PACK_ROW(2, QK_SCALE) QK_PACK_ROW(3, QK_SCALE)
#undef QK_SCALE
        }
#undef QK_PACK_ROW
    }
    const int direct = b->n == whole && valid >= pixels;
    const int64_t pitch = direct ? b->out_pixel : whole;
    for (int r = 0; r < rows; r++, out += b->out_row) {
        uint8_t *const from = bytes + r * 4 * whole, *const to = direct ? out : from;
        if (!wide) {
            qk_turn_pixels(pixels, to, pitch, from, b->clips, b->bounds);
        } else {
            qk_turn_pair(2, to, pitch, from, b->limits);
            qk_turn_pair(pixels - 2, to + 2 * pitch, pitch, from + 4 * QK_FILL_BYTES, b->limits);
        }
        if (!direct)
            qk_store_shared(b, out, from, valid < pixels ? valid : pixels);
    }
}

#define QK_FILL_OF(name, wide, unit, kernel, stride, together, rows, pixels)                                  \
    static __attribute__((noinline)) void name##unit##_##kernel##_##stride##_##together##_##rows##_##pixels( \
        const qk_block *b, const uint8_t *const *group, int64_t at, uint8_t *bytes, uint8_t *out, int64_t valid) \
    {                                                                                                        \
        qk_fill(wide, unit, kernel, stride, together, rows, pixels, b, group, at, bytes, out, valid);        \
    }
#define QK_FILLS(...)                                                                                        \
    QK_FILL_OF(qk_fill_, 0, __VA_ARGS__, 3) QK_FILL_OF(qk_fill_, 0, __VA_ARGS__, 4)                          \
    QK_FILL_OF(qk_fill_wide_, 1, __VA_ARGS__, 3) QK_FILL_OF(qk_fill_wide_, 1, __VA_ARGS__, 4)
#define QK_NAMES_OF(name, unit, kernel, stride, together, rows)       \
    {name##unit##_##kernel##_##stride##_##together##_##rows##_3, name##unit##_##kernel##_##stride##_##together##_##rows##_4}
/* Unit, kernel, stride, output rows together, and of the last pass. compiler/targets/engine/packing.py: same. */
#define QK_WINDOWS_OF_PAIRS(X) X(2, 3, 1, 2, 2) X(2, 3, 2, 2, 2) X(2, 5, 1, 2, 2) X(2, 5, 2, 2, 2)
#if QK_KU > 2 && QK_LANES_16 > 2
#define QK_WINDOWS_OF_FIVE(X) X(4, 5, 1, 4, 4) X(4, 5, 1, 4, 3)
#else /* sixteen registers hold the sums of two rows */
#define QK_WINDOWS_OF_FIVE(X) X(4, 5, 1, 2, 2)
#endif
#if QK_KU > 2
#define QK_WINDOWS(X) \
    X(4, 3, 1, 2, 2) X(4, 3, 2, 1, 1) QK_WINDOWS_OF_FIVE(X) X(4, 5, 2, 2, 2) QK_WINDOWS_OF_PAIRS(X)
#else
#define QK_WINDOWS(X) QK_WINDOWS_OF_PAIRS(X)
#endif
QK_WINDOWS(QK_FILLS)
static const struct {
    int64_t unit, kernel, stride, together, rows;
    qk_fill_function pixels[2][2]; /* of bytes and of int16 */
} qk_windows[] = {
#define QK_WINDOW(...) {__VA_ARGS__, {QK_NAMES_OF(qk_fill_, __VA_ARGS__), QK_NAMES_OF(qk_fill_wide_, __VA_ARGS__)}},
    QK_WINDOWS(QK_WINDOW)
};

/* The kernels for `rows` output rows; 0 if there are none. */
static const qk_fill_function *qk_fills_of(const qk_depthwise_step *d, int64_t rows)
{
    for (size_t i = 0; i < sizeof qk_windows / sizeof *qk_windows; i++)
        if (qk_windows[i].unit == qk_unit(d) && qk_windows[i].kernel == d->kernel_y && qk_windows[i].kernel == d->kernel_x &&
            qk_windows[i].stride == d->stride_y && qk_windows[i].stride == d->stride_x &&
            qk_windows[i].together == d->together && qk_windows[i].rows == rows && d->dilation_y == 1 && d->dilation_x == 1)
            return qk_windows[i].pixels[d->rq.type == QK_S16];
    return 0;
}

/* Vectors of a block of which `left` are left: as many as there are lanes, or 2, or 1. */
static int64_t qk_block_vectors(int64_t left) { return left >= QK_LANES_16 ? QK_LANES_16 : left > 1 ? 2 : 1; }

/* Groups of lines that two passes read, one below the other; they lie in turning places then. */
static int64_t qk_shared_groups(const qk_depthwise_step *d)
{
    const int64_t groups = qk_line_groups(d), pass = d->together * d->stride_y, unit = qk_unit(d);
    const int64_t moved = unit == QK_KU ? pass / QK_KU : pass / 2;
    return moved * unit == pass && moved < groups ? groups - moved : 0;
}

/* Pixels `first` to `first + width` of a block, rows `top` to `bottom`. */
static void qk_run_strip(const qk_depthwise_step *d, const qk_memory *m, qk_block *b, int64_t groups, int64_t same,
                         int64_t channel, int64_t first, int64_t width, int64_t top, int64_t bottom)
{
    const int64_t all = (d->height - 1) * d->stride_y + d->kernel_y, lines = qk_lines(d), size = 4 * QK_FILL_BYTES;
    const int64_t share = (width + b->shared - 1) >> (b->shared / 2), columns = (share - 1) * d->stride_x + d->kernel_x;
    const int64_t unit = qk_unit(d);
    const uint8_t *in = m->arena + d->source + channel * qk_size_of(d->type) + first * d->stride_x * d->in_pixel;
    uint8_t *out = m->arena + d->out + channel * b->size + first * d->out_pixel, *mixed = m->arena + d->scratch;
    uint8_t bytes[4 * 8 * QK_FILL_BYTES] __attribute__((aligned(64)));
    int64_t ahead[4];
    for (int64_t i = 0; i < b->shared; i++) {
        const int64_t from = (i + 1) * share <= width ? i * share : width - share;
        ahead[i] = from * d->stride_x * d->in_pixel;
        b->apart[i] = from * d->out_pixel;
    }
    for (int64_t next = top, turn = 0; next < bottom; next += d->together) {
        const int64_t left = d->height - next;
        const qk_fill_function *fills = left < d->together && b->last ? b->last : b->fills;
        const int64_t y = left < d->together && !b->last ? d->height - d->together : next; /* some rows again */
        const uint8_t *group[4], *begin = in + y * d->stride_y * d->in_row;
        const int64_t most = same ? all - y * d->stride_y : lines; /* a line beyond has weight 0 */
        for (int64_t g = 0; g < groups; g++) {
            uint8_t *to = mixed + (turn + g < groups ? turn + g : turn + g - groups) * columns * size;
            const uint8_t *row[QK_KU];
            for (int64_t i = 0; i < QK_KU; i++)
                row[i] = begin + (g * unit + i < most ? g * unit + i : 0) * d->in_row;
            group[g] = to;
            if (next != top && y == next && g < same)
                continue;
            if (d->type == QK_S16)
                qk_interleave_pair_lanes(to, size, columns, row, d->in_pixel, (int)b->shared, ahead);
            else
                qk_interleave_lanes(to, size, columns, row, d->in_pixel, (int)b->shared, ahead);
        }
        for (int64_t x = 0, pixels; x < share; x += pixels) {
            const int64_t rest = share - x;
            pixels = rest < 4 || rest == 5 || rest == 6 || rest == 9 ? 3 : 4;
            fills[pixels - 3](b, group, x * d->stride_x * size, bytes, out + y * d->out_row + x * d->out_pixel, rest);
        }
        turn += same ? groups - same : 0;
        turn -= turn < groups ? 0 : groups;
    }
}

static void qk_run_rows(const qk_depthwise_step *d, const qk_memory *m, const qk_fill_function *fills,
                        const qk_fill_function *last, int64_t same, int64_t top, int64_t bottom)
{
    const int64_t groups = qk_line_groups(d), vectors = (d->channels + 15) / 16;
    const int64_t bytes = QK_LANES_16 * d->kernel_x * groups * d->together * 64; /* of weights of a block */
    const int wide = d->rq.type == QK_S16;
    const qk_bounds bounds = qk_byte_bounds(d->rq.low < 0 ? 0 : (int)d->rq.low, d->rq.high > 255 ? 255 : (int)d->rq.high);
    uint8_t limits[8 * QK_FILL_BYTES] __attribute__((aligned(64)));
    if (wide && !d->rq.by_channel)
        for (int64_t i = 0; i < 2 * QK_FILL_BYTES; i++) {
            ((int16_t *)limits)[i] = (int16_t)d->rq.low;
            ((int16_t *)limits)[2 * QK_FILL_BYTES + i] = (int16_t)d->rq.high;
        }
    for (int64_t v = 0, at = 0, some; v < vectors; v += some, at++) {
        some = qk_block_vectors(vectors - v);
        const int64_t channel = v * 16, shared = QK_LANES_16 / some, most = QK_SHARE * shared;
        const int64_t n = d->channels - channel < 16 * some ? d->channels - channel : 16 * some;
        const int64_t place = at * 4 * QK_FILL_BYTES;
        const uint8_t *const mult = m->blob + d->rq.mult + place;
        const int real = d->rq.kind == QK_REAL;
        qk_block b = {m->blob + d->weight + at * bytes, real ? mult : 0, (const int32_t *)(m->blob + d->bias + place),
                      (const int32_t *)mult, (const int32_t *)(m->blob + d->rq.shift + place),
                      (const int64_t *)(m->blob + (real ? 0 : d->rq.add) + 2 * place), QK_REAL_BITS - (int32_t)d->rq.add,
                      d->out_row, d->out_pixel, {0, 0, 0, 0}, shared, n << wide, d->rq.low > 0 || d->rq.high < 255, bounds,
                      1 + wide, limits, fills, last};
        for (int64_t i = 0; i < 8 && wide && d->rq.by_channel; i++) {
            const uint8_t *ends = m->blob + (i < 4 ? d->rq.low : d->rq.high) + place + i % 4 * QK_FILL_BYTES;
            const qk_part own = qk_load_part((const int32_t *)ends);
            qk_pack_pair(limits + i * QK_FILL_BYTES, own, own);
        }
        for (int64_t i = 0; i < bytes; i += 64) /* the next block, on its way to the cache */
            __builtin_prefetch(b.weight + bytes + i, 0, 2);
        for (int64_t first = 0, width; first < d->width; first += width) {
            width = d->width - first <= QK_MOST_SHARE * shared ? d->width - first : most;
            qk_run_strip(d, m, &b, groups, same, channel, first, width, top, bottom);
        }
    }
}

/* Row by row; where passes share groups, each strip from the top to the bottom. */
static void qk_run_blocks(const qk_depthwise_step *d, const qk_memory *m)
{
    const int64_t same = qk_shared_groups(d), rows = same ? d->height : d->together;
    const qk_fill_function *fills = qk_fills_of(d, d->together), *last = qk_fills_of(d, d->height % d->together);
    for (int64_t top = 0; top < d->height; top += rows)
        qk_run_rows(d, m, fills, last, same, top, top + rows < d->height ? top + rows : d->height);
}
#endif

static void qk_run_depthwise(const qk_depthwise_step *d, const qk_memory *m)
{
#if QK_LANES_16 > 1
    if (d->block > 1) {
        qk_run_blocks(d, m);
        return;
    }
#endif
    qk_run_taps(d, m);
}

/* Places of channels in weights, bias and factors: what fills no block takes one for 2 vectors, and
 * one for 1. */
static int64_t qk_depthwise_places(const qk_depthwise_step *d)
{
    const int64_t vectors = (d->channels + 15) / 16, rest = vectors % QK_LANES_16;
    return d->block > 1 ? (vectors / QK_LANES_16 + rest / 2 + rest % 2) * QK_LANES_16 * 16 : vectors * 16;
}

/* Columns that are interleaved at once, and those that pixels beyond the last read. */
static int64_t qk_mixed_columns(const qk_depthwise_step *d)
{
#if QK_LANES_16 > 1
    if (d->block > 1)
        return ((d->width < QK_MOST_SHARE ? d->width : QK_MOST_SHARE) + 2) * d->stride_x + d->kernel_x;
#endif
    return (d->width - 1) * d->stride_x + (d->kernel_x - 1) * d->dilation_x + 1;
}

/* Whether there are kernels for a step that fills registers. */
static int qk_has_block(const qk_depthwise_step *d)
{
#if QK_LANES_16 > 1
    if (d->block == QK_LANES_16)
        return (d->rq.type == QK_U8 || d->rq.type == QK_S16) && (d->rq.kind == QK_REAL || (d->rq.kind == QK_FACTOR && !d->rq.left)) &&
               qk_fills_of(d, d->together);
#endif
    return d->block == 1;
}
