/* Depthwise convolution: sixteen channels at a time, an output row at a time.
 *
 * The rows of a window are interleaved once for every input column, so that one dot step takes
 * QK_KU vertical taps of sixteen channels. Weights lie as [16 channels][kernel_x][ky / QK_KU]
 * [channel][QK_KU].
 */
#include "step.h"

#ifndef QK_DOT_TAPS
#define QK_DOT_TAPS qk_dot
#define QK_TAPS qk_spread
#endif

#define QK_ROW_PIXELS 64

static void qk_run_depthwise(const qk_depthwise_step *d, const qk_memory *m)
{
    const int64_t groups = (d->kernel_y + QK_KU - 1) / QK_KU, taps = groups * d->kernel_x;
    const int64_t columns = (d->width - 1) * d->stride_x + (d->kernel_x - 1) * d->dilation_x + 1;
    uint8_t *mixed = m->arena + d->scratch;
    int32_t sums[QK_ROW_PIXELS * 16] __attribute__((aligned(64)));
    uint8_t *out[QK_ROW_PIXELS];

    for (int64_t y = 0; y < d->height; y++) {
        for (int64_t channel = 0; channel < d->channels; channel += 16) {
            const uint8_t *in = m->arena + d->source + y * d->stride_y * d->in_row + channel;
            const uint8_t *weight = m->blob + d->weight + channel / 16 * taps * 64;
            const qk_vec bias = qk_load((const int32_t *)(m->blob + d->bias) + channel);
            const int n = d->channels - channel < 16 ? (int)(d->channels - channel) : 16;

            for (int64_t g = 0; g < groups; g++) {
                const uint8_t *row[QK_KU];
                for (int64_t i = 0; i < QK_KU; i++) {
                    const int64_t tap = g * QK_KU + i; /* a tap beyond the kernel has weight 0 */
                    row[i] = in + (tap < d->kernel_y ? tap : 0) * d->dilation_y * d->in_row;
                }
                for (int64_t x = 0; x < columns; x++) {
                    qk_interleave(mixed + (x * groups + g) * 64, row);
                    for (int64_t i = 0; i < QK_KU; i++)
                        row[i] += d->in_pixel;
                }
            }
            for (int64_t first = 0; first < d->width; first += QK_ROW_PIXELS) {
                const int64_t count = d->width - first < QK_ROW_PIXELS ? d->width - first : QK_ROW_PIXELS;
                const int64_t step = d->stride_x * groups * 64;
                for (int64_t x = 0; x < count; x += 4) {
                    /* The last pixels are computed again rather than by a loop of their own. */
                    const int64_t at = x + 4 <= count ? x : count < 4 ? 0 : count - 4;
                    const uint8_t *p0 = mixed + (first + at) * step;
                    const uint8_t *p1 = p0 + (count > 1 ? step : 0), *p2 = p1 + (count > 2 ? step : 0);
                    const uint8_t *p3 = p2 + (count > 3 ? step : 0), *w = weight;
                    qk_vec c0 = bias, c1 = bias, c2 = bias, c3 = bias;
                    for (int64_t s = 0; s < d->kernel_x; s++) {
                        for (int64_t g = 0; g < groups; g++, w += 64) {
                            const int64_t place = s * d->dilation_x * groups * 64 + g * 64;
                            const qk_weight taps_of = qk_load_weight(w);
                            c0 = QK_DOT_TAPS(c0, qk_load_taps(p0 + place), taps_of);
                            c1 = QK_DOT_TAPS(c1, qk_load_taps(p1 + place), taps_of);
                            c2 = QK_DOT_TAPS(c2, qk_load_taps(p2 + place), taps_of);
                            c3 = QK_DOT_TAPS(c3, qk_load_taps(p3 + place), taps_of);
                        }
                    }
                    qk_store(sums + at * 16, c0);
                    qk_store(sums + (at + 1) * 16, c1);
                    qk_store(sums + (at + 2) * 16, c2);
                    qk_store(sums + (at + 3) * 16, c3);
                }
                for (int64_t x = 0; x < count; x++)
                    out[x] = m->arena + d->out + y * d->out_row + (first + x) * d->out_pixel;
                qk_finish(&d->rq, m->blob, channel, sums, 16, count, out, channel, n);
            }
        }
    }
}
