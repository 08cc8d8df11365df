/* Pools, copies, borders, tables, and the way from and to floats. */
#include "step.h"

#define QK_POOL_CHANNELS 256

static void qk_run_pool(const qk_pool_step *p, const qk_memory *m)
{
    const int64_t size = p->type == QK_U8 ? 1 : p->type == QK_S16 ? 2 : 4;
    const int maximum = p->how == QK_POOL_MAX;
    int32_t acc[QK_POOL_CHANNELS];

    for (int64_t y = 0; y < p->height; y++)
        for (int64_t x = 0; x < p->width; x++)
            for (int64_t first = 0; first < p->channels; first += QK_POOL_CHANNELS) {
                const int64_t left = p->channels - first;
                const int64_t n = left < QK_POOL_CHANNELS ? left : QK_POOL_CHANNELS;
                int64_t taps = 0;
                for (int64_t i = 0; i < n; i++)
                    acc[i] = maximum ? INT32_MIN : 0;
                for (int64_t r = 0; r < p->kernel_y; r++) {
                    const int64_t iy = y * p->stride_y + r * p->dilation_y - p->top;
                    if (iy < 0 || iy >= p->in_height)
                        continue;
                    for (int64_t s = 0; s < p->kernel_x; s++) {
                        const int64_t ix = x * p->stride_x + s * p->dilation_x - p->left;
                        if (ix < 0 || ix >= p->in_width)
                            continue;
                        const uint8_t *in = m->arena + p->source + iy * p->in_row + ix * p->in_pixel + first * size;
                        const int16_t *in16 = (const int16_t *)in;
                        const int32_t *in32 = (const int32_t *)in;
                        taps++;
#define QK_POOL_LOOP(value)                                   \
    for (int64_t i = 0; i < n; i++) {                         \
        const int32_t v = value;                              \
        acc[i] = !maximum ? acc[i] + v : v > acc[i] ? v : acc[i]; \
    }
                        if (p->type == QK_U8)
                            QK_POOL_LOOP(in[i])
                        else if (p->type == QK_S16)
                            QK_POOL_LOOP(in16[i])
                        else
                            QK_POOL_LOOP(in32[i])
#undef QK_POOL_LOOP
                    }
                }
                uint8_t *out = m->arena + p->out + y * p->out_row + x * p->out_pixel;
                if (maximum) {
                    for (int64_t i = 0; i < n; i++) {
                        if (p->type == QK_U8)
                            out[first + i] = (uint8_t)acc[i];
                        else if (p->type == QK_S16)
                            ((int16_t *)out)[first + i] = (int16_t)acc[i];
                        else
                            ((int32_t *)out)[first + i] = acc[i];
                    }
                } else {
                    const int64_t count = p->count ? p->count : taps > 0 ? taps : 1;
                    for (int64_t i = 0; i < n; i++)
                        ((int32_t *)out)[first + i] =
                            (int32_t)(((int64_t)acc[i] - taps * p->zero) * p->factor / count);
                }
            }
}

static void qk_run_copy(const qk_copy_step *c, const qk_memory *m)
{
    const uint8_t *base = (c->in_blob ? m->blob : m->arena) + c->source;
    const int64_t *n = c->size, *si = c->in_stride, *so = c->out_stride;
    for (int64_t i0 = 0; i0 < n[0]; i0++)
        for (int64_t i1 = 0; i1 < n[1]; i1++)
            for (int64_t i2 = 0; i2 < n[2]; i2++)
                for (int64_t i3 = 0; i3 < n[3]; i3++)
                    for (int64_t i4 = 0; i4 < n[4]; i4++) {
                        const uint8_t *in =
                            base + i0 * si[0] + i1 * si[1] + i2 * si[2] + i3 * si[3] + i4 * si[4];
                        uint8_t *out = m->arena + c->out + i0 * so[0] + i1 * so[1] + i2 * so[2] +
                                       i3 * so[3] + i4 * so[4];
                        if (c->bytes == 1)
                            for (int64_t i5 = 0; i5 < n[5]; i5++)
                                out[i5 * so[5]] = in[i5 * si[5]];
                        else
                            for (int64_t i5 = 0; i5 < n[5]; i5++)
                                memcpy(out + i5 * so[5], in + i5 * si[5], (size_t)c->bytes);
                    }
}

/* The border around height rows of row_bytes; the rows themselves are left alone. */
static void qk_run_fill(const qk_fill_step *f, const qk_memory *m)
{
    uint8_t *at = m->arena + f->out;
    const int value = (int)f->value;
    const int64_t whole = f->left + f->row_bytes + f->right;
    for (int64_t y = 0; y < f->top; y++, at += f->row_pitch)
        memset(at, value, (size_t)whole);
    for (int64_t y = 0; y < f->height; y++, at += f->row_pitch) {
        memset(at, value, (size_t)f->left);
        memset(at + f->left + f->row_bytes, value, (size_t)f->right);
    }
    for (int64_t y = 0; y < f->bottom; y++, at += f->row_pitch)
        memset(at, value, (size_t)whole);
}

#ifndef QK_LOOKUP_BYTES
static inline void qk_lookup_bytes(uint8_t *out, const uint8_t *in, const uint8_t *table, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = table[in[i]];
}
#endif

static void qk_run_lookup(const qk_lookup_step *l, const qk_memory *m)
{
    const uint8_t *table = m->blob + l->table;
    for (int64_t r = 0; r < l->d0; r++) {
        const uint8_t *in = m->arena + l->source + r * l->in_stride;
        uint8_t *out = m->arena + l->out + r * l->out_stride;
        if (l->type == QK_U8)
            qk_lookup_bytes(out, in, table, l->columns);
        else if (l->type == QK_S16)
            for (int64_t i = 0; i < l->columns; i++)
                ((int16_t *)out)[i] = ((const int16_t *)table)[in[i]];
        else
            for (int64_t i = 0; i < l->columns; i++)
                ((int32_t *)out)[i] = ((const int32_t *)table)[in[i]];
    }
}

#define QK_CHUNK 512

/* x * scale rounded half away from zero, clipped; NaN gives 0. */
static void qk_run_quantize(const qk_quantize_step *q, const qk_memory *m)
{
    const uint8_t *input = m->inputs[q->input] + m->sample * m->input_bytes[q->input];
    const float *scales = (const float *)(m->blob + q->scale);
    const float least = (float)(q->low - 1), most = (float)(q->high + 1);
    const int32_t low = (int32_t)q->low, high = (int32_t)q->high, zero = (int32_t)q->zero;
    const int64_t size = qk_size_of(q->type);
    const int is_colour = q->type == QK_U8 && q->planes == 3 && q->out_plane == 1 && q->out_item == 3;
    int32_t whole[QK_CHUNK];
    uint8_t plane[3][QK_CHUNK];

    for (int64_t r = 0; r < q->rows; r++)
        for (int64_t first = 0; first < q->row_items; first += QK_CHUNK) {
            const int64_t left = q->row_items - first, n = left < QK_CHUNK ? left : QK_CHUNK;
            for (int64_t p = 0; p < q->planes; p++) {
                const int64_t from = (p * q->rows + r) * q->row_items + first;
                uint8_t *out = m->arena + q->out + p * q->out_plane + r * q->out_row + first * q->out_item;
                if (q->type == QK_S64) {
                    const uint8_t *in = input + from * size;
                    for (int64_t i = 0; i < n; i++)
                        memcpy(out + i * q->out_item, in + i * size, (size_t)size);
                    continue;
                }
                if (q->raw) {
                    const uint8_t *in = input + from * size;
                    for (int64_t i = 0; i < n; i++)
                        whole[i] = q->type == QK_U8    ? (uint8_t)(in[i] + zero)
                                   : q->type == QK_S16 ? ((const int16_t *)in)[i]
                                                       : ((const int32_t *)in)[i];
                } else {
                    const float *in = (const float *)input + from;
                    const float scale = scales[q->per_plane ? p : 0];
                    for (int64_t i = 0; i < n; i++) {
                        float v = in[i] * scale;
                        v = v == v ? v : 0.0f;
                        v = v < least ? least : v;
                        v = v > most ? most : v;
                        int32_t t = (int32_t)v;
                        const float rest = v - (float)t;
                        t += (rest >= 0.5f) - (rest <= -0.5f);
                        t = t < low ? low : t;
                        whole[i] = (t > high ? high : t) + zero;
                    }
                }
                if (is_colour || (q->type == QK_U8 && q->out_item == 1)) {
                    uint8_t *bytes = is_colour ? plane[p] : out;
                    for (int64_t i = 0; i < n; i++)
                        bytes[i] = (uint8_t)whole[i];
                } else if (q->type == QK_U8) {
                    for (int64_t i = 0; i < n; i++)
                        out[i * q->out_item] = (uint8_t)whole[i];
                } else if (q->type == QK_S16) {
                    for (int64_t i = 0; i < n; i++)
                        *(int16_t *)(out + i * q->out_item) = (int16_t)whole[i];
                } else {
                    for (int64_t i = 0; i < n; i++)
                        *(int32_t *)(out + i * q->out_item) = whole[i];
                }
            }
            uint8_t *out = m->arena + q->out + r * q->out_row + first * 3;
            for (int64_t i = 0; is_colour && i < n; i++) {
                out[3 * i] = plane[0][i];
                out[3 * i + 1] = plane[1][i];
                out[3 * i + 2] = plane[2][i];
            }
        }
}

static void qk_run_dequantize(const qk_dequantize_step *d, const qk_memory *m)
{
    const uint8_t *in = m->arena + d->source;
    uint8_t *output = m->outputs[d->output] + m->sample * m->output_bytes[d->output];
    const float *scales = (const float *)(m->blob + d->scale);
    const int64_t size = qk_size_of(d->type);
    if (d->raw) {
        if (d->type == QK_U8 && d->zero)
            for (int64_t i = 0; i < d->count; i++)
                output[i] = (uint8_t)(in[i] - d->zero);
        else
            memcpy(output, in, (size_t)(d->count * size));
        return;
    }
    for (int64_t i = 0; i < d->count; i++) {
        const int32_t x = (d->type == QK_U8    ? in[i]
                           : d->type == QK_S16 ? ((const int16_t *)in)[i]
                                               : ((const int32_t *)in)[i]) -
                          (int32_t)d->zero;
        ((float *)output)[i] = (float)x * scales[d->per_item ? i : 0];
    }
}
