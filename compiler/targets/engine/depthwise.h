/* Depthwise convolution: sixteen channels at a time, up to four output rows at a time.
 *
 * The rows that the windows of `together` output rows cover are interleaved once for every input
 * column, so that one dot step takes QK_KU vertical taps of sixteen channels and serves all these
 * output rows. Weights lie as [16 channels][kernel_x][rows / QK_KU][output row][channel][QK_KU]; what
 * an output row does not read has the weight 0.
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

/* Sums of `pixels` neighbours in `rows` output rows; a pixel's taps are `runs` runs of `count`. */
static inline __attribute__((always_inline)) void qk_taps(
    const int rows, const int pixels, const uint8_t *const *pixel, int64_t runs, int64_t run_bytes, int64_t count,
    const uint8_t *w, const int32_t *bias, int32_t *sums, int64_t pitch)
{
    const qk_part start = qk_load_part(bias);
#define QK_EACH_PIXEL(X) X(0) X(1) X(2) X(3)
#define QK_DECLARE(p)                                                       \
    qk_part r0_##p = start, r1_##p = start, r2_##p = start, r3_##p = start; \
    const uint8_t *x##p = pixel[pixels > p ? p : 0];
    QK_EACH_PIXEL(QK_DECLARE)
#undef QK_DECLARE
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
        r0_##p = qk_dot_part(r0_##p, x, w0);                    \
        if (rows > 1) r1_##p = qk_dot_part(r1_##p, x, w1);      \
        if (rows > 2) r2_##p = qk_dot_part(r2_##p, x, w2);      \
        if (rows > 3) r3_##p = qk_dot_part(r3_##p, x, w3);      \
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
#undef QK_EACH_PIXEL
}

/* Sums of `pitch` pixels, at least four: beyond `width` the first again. The last ones are computed
 * again rather than by a loop of their own. */
#define QK_TAP_ROWS(rows, pixels)                                                                           \
    static __attribute__((noinline)) void qk_taps_##rows(                                                   \
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
                qk_taps(rows, pixels, pixel, runs, run_bytes, count, weight + place, bias + first,          \
                        sums + at * 16 + first, pitch);                                                 \
            }                                                                                               \
        }                                                                                                   \
    }
QK_TAP_ROWS(1, 4)
QK_TAP_ROWS(2, QK_PAIR_PIXELS)
QK_TAP_ROWS(3, QK_FOUR_PIXELS)
QK_TAP_ROWS(4, QK_FOUR_PIXELS)
#endif /* QK_OWN_TILES */

static void qk_run_depthwise(const qk_depthwise_step *d, const qk_memory *m)
{
    const int64_t lines = qk_lines(d), groups = (lines + QK_KU - 1) / QK_KU, together = d->together;
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
                const uint8_t *in = m->arena + d->source + y * d->stride_y * d->in_row + channel +
                                    first * d->stride_x * d->in_pixel;
                const uint8_t *weight = m->blob + d->weight + channel / 16 * d->kernel_x * groups * together * 64;
                const int32_t *bias = (const int32_t *)(m->blob + d->bias) + channel;
                const int n = d->channels - channel < 16 ? (int)(d->channels - channel) : 16;

                for (int64_t g = 0; g < groups; g++) {
                    const uint8_t *row[QK_KU];
                    for (int64_t i = 0; i < QK_KU; i++) {
                        const int64_t line = g * QK_KU + i; /* a line beyond the last has weight 0 */
                        row[i] = in + (line < lines ? line : 0) * d->dilation_y * d->in_row;
                    }
                    for (int64_t x = 0; x < columns; x++) {
                        qk_interleave(mixed + (x * groups + g) * 64, row);
                        for (int64_t i = 0; i < QK_KU; i++)
                            row[i] += d->in_pixel;
                    }
                }
#ifdef QK_OWN_TILES
                qk_own_taps(mixed, step, width, runs, run_bytes, count, weight, bias, sums);
#else
                switch (together) {
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
