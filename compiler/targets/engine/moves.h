/* Pools, copies, borders, tables, and the way from and to floats. */
#include "step.h"

#define QK_POOL_CHANNELS 256
#define QK_POOL_LANES 32 /* channels of a pass: bytes beyond the last one are read, not written */
#define QK_POOL_TAPS 256 /* whose sums of bytes fit in 16 bits */

/* Taps of the window of one output that lie within the input, along one axis. */
typedef struct {
    int64_t first, count;
} qk_inside;

static inline qk_inside qk_taps_inside(int64_t start, int64_t dilation, int64_t kernel, int64_t size)
{
    const int64_t before = start < 0 ? -start : 0, after = start < size ? size - start : 0;
    const int64_t first = dilation == 1 ? before : (before + dilation - 1) / dilation; /* divisions are slow */
    const int64_t behind = dilation == 1 ? after : (after + dilation - 1) / dilation;
    const int64_t last = behind < kernel ? behind : kernel;
    const qk_inside taps = {first, last > first ? last - first : 0};
    return taps;
}

/* (sum - taps * zero) * factor / count, to zero. Doubles hold numerators below 2^52, and the quotient
 * is too far from an integer to become one. */
static inline void qk_average(const qk_pool_step *p, const int32_t *restrict sums, int64_t taps, int32_t *restrict out,
                              int64_t n)
{
    const int64_t count = p->count ? p->count : taps > 0 ? taps : 1, away = taps * p->zero;
    const int64_t factor = p->factor < 0 ? -p->factor : p->factor;
    if (away > -((int64_t)1 << 30) && away < (int64_t)1 << 30 && factor < 1 << 20) {
        const double times = (double)p->factor, by = (double)count, less = (double)away;
        for (int64_t i = 0; i < n; i++)
            out[i] = (int32_t)(((double)sums[i] - less) * times / by);
    } else {
        for (int64_t i = 0; i < n; i++)
            out[i] = (int32_t)((sums[i] - away) * p->factor / count);
    }
}

/* change for every tap and channel; x points to the channels of a tap. */
#define QK_POOL_WINDOW(type, change)                                                                              \
    for (int64_t r = 0; r < rows; r++)                                                                            \
        for (int64_t s = 0; s < columns; s++) {                                                                   \
            const type *x = (const type *)(in + r * p->dilation_y * p->in_row + s * p->dilation_x * p->in_pixel); \
            for (int64_t i = 0; i < lanes; i++)                                                                   \
                change;                                                                                           \
        }

/* One output of up to QK_POOL_CHANNELS channels of bytes, a fixed number of lanes at a time, in registers. */
typedef uint8_t qk_pool_lanes __attribute__((vector_size(QK_POOL_LANES)));
#ifdef __AVX512BW__
#define QK_SUM_LANES QK_POOL_LANES
#else
#define QK_SUM_LANES 16 /* gcc keeps sums in memory that are wider than a register */
#endif
typedef uint8_t qk_sum_lanes __attribute__((vector_size(QK_SUM_LANES)));
typedef uint16_t qk_pool_sums __attribute__((vector_size(2 * QK_SUM_LANES)));

static void qk_pool_bytes(const qk_pool_step *p, const uint8_t *from, int64_t rows, int64_t columns, uint8_t *out,
                          int64_t channels)
{
    const int64_t down = p->dilation_y * p->in_row, across = p->dilation_x * p->in_pixel;
    const int64_t lanes = p->how == QK_POOL_MAX ? QK_POOL_LANES : QK_SUM_LANES;
    for (int64_t first = 0; first < channels; first += lanes) {
        const int64_t kept = channels - first < lanes ? channels - first : lanes;
#define QK_POOL_BYTES(change)                                \
    for (int64_t r = 0; r < rows; r++)                       \
        for (int64_t s = 0; s < columns; s++) {              \
            memcpy(&x, from + first + r * down + s * across, sizeof(x)); \
            change;                                          \
        }
        if (p->how == QK_POOL_MAX) {
            qk_pool_lanes x, most = {0};
            QK_POOL_BYTES(most = (x & (x > most)) | (most & (x <= most)))
            memcpy(out + first, &most, (size_t)kept);
        } else {
            int32_t sums[QK_SUM_LANES];
            qk_sum_lanes x;
            qk_pool_sums total = {0};
            QK_POOL_BYTES(total += __builtin_convertvector(x, qk_pool_sums))
            for (int64_t i = 0; i < QK_SUM_LANES; i++)
                sums[i] = total[i];
            qk_average(p, sums, rows * columns, (int32_t *)out + first, kept);
        }
#undef QK_POOL_BYTES
    }
}

/* The same for any type, and for any number of taps; `lanes` at a time, of which n are written. */
static inline __attribute__((always_inline)) void qk_pool_lanes_of(const int64_t lanes, const qk_pool_step *p,
                                                                   const uint8_t *in, int64_t rows, int64_t columns,
                                                                   uint8_t *out, int64_t n)
{
    const int maximum = p->how == QK_POOL_MAX;
    int32_t acc[QK_POOL_CHANNELS];
    for (int64_t i = 0; i < lanes; i++)
        acc[i] = maximum ? INT32_MIN : 0;
#define QK_POOL_TYPE(type)                                                \
    if (maximum)                                                          \
        QK_POOL_WINDOW(type, acc[i] = x[i] > acc[i] ? x[i] : acc[i])      \
    else                                                                  \
        QK_POOL_WINDOW(type, acc[i] = acc[i] + x[i])
    if (p->type == QK_U8)
        QK_POOL_TYPE(uint8_t)
    else if (p->type == QK_S16)
        QK_POOL_TYPE(int16_t)
    else
        QK_POOL_TYPE(int32_t)
#undef QK_POOL_TYPE
    if (!maximum)
        qk_average(p, acc, rows * columns, (int32_t *)out, n);
    else if (p->type == QK_S32)
        memcpy(out, acc, 4 * (size_t)n);
    else
        for (int64_t i = 0; i < n; i++)
            if (p->type == QK_U8)
                out[i] = (uint8_t)acc[i];
            else
                ((int16_t *)out)[i] = (int16_t)acc[i];
}
#undef QK_POOL_WINDOW

static void qk_pool_any(const qk_pool_step *p, const uint8_t *in, int64_t rows, int64_t columns, uint8_t *out,
                        int64_t n)
{
    if (n <= 8)
        qk_pool_lanes_of(8, p, in, rows, columns, out, n);
    else
        qk_pool_lanes_of(n, p, in, rows, columns, out, n);
}

static void qk_run_pool(const qk_pool_step *p, const qk_memory *m)
{
    const int64_t size = qk_size_of(p->type), out_size = p->how == QK_POOL_MAX ? size : 4;
    const int bytes = p->type == QK_U8 && p->kernel_y * p->kernel_x <= QK_POOL_TAPS;
    for (int64_t y = 0; y < p->height; y++)
        for (int64_t x = 0; x < p->width; x++) {
            const int64_t iy = y * p->stride_y - p->top, ix = x * p->stride_x - p->left;
            const qk_inside down = qk_taps_inside(iy, p->dilation_y, p->kernel_y, p->in_height);
            const qk_inside across = qk_taps_inside(ix, p->dilation_x, p->kernel_x, p->in_width);
            const uint8_t *in = m->arena + p->source + (iy + down.first * p->dilation_y) * p->in_row +
                                (ix + across.first * p->dilation_x) * p->in_pixel;
            uint8_t *out = m->arena + p->out + y * p->out_row + x * p->out_pixel;
            for (int64_t first = 0; first < p->channels; first += QK_POOL_CHANNELS) {
                const int64_t left = p->channels - first, n = left < QK_POOL_CHANNELS ? left : QK_POOL_CHANNELS;
                (bytes ? qk_pool_bytes : qk_pool_any)(p, in + first * size, down.count, across.count,
                                                      out + first * out_size, n);
            }
        }
}

/* Elements of `size` bytes, rows of the input as columns of the output, 16 bytes a row; of the output the
 * first `count` rows, and their first `bytes` bytes. Up to 16 bytes behind a row are read. */
typedef uint8_t qk_sixteen __attribute__((vector_size(16)));

static inline __attribute__((always_inline)) void qk_turn_block(const int size, uint8_t *out, int64_t out_pitch,
                                                                const uint8_t *in, int64_t in_pitch, int64_t rows,
                                                                int64_t count, int64_t bytes)
{
    static const qk_sixteen lower[3] = {{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23},
                                        {0, 1, 16, 17, 2, 3, 18, 19, 4, 5, 20, 21, 6, 7, 22, 23},
                                        {0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23}};
    const int n = 16 / size, half = n / 2;
    const qk_sixteen low = lower[size / 2], high = low + 8;
    qk_sixteen a[16], b[16];
    _Pragma("GCC unroll 16") for (int i = 0; i < n; i++)
        memcpy(&a[i], in + (i < rows ? i : 0) * in_pitch, 16);
    _Pragma("GCC unroll 4") for (int times = n; times > 1; times /= 2) {
        _Pragma("GCC unroll 8") for (int i = 0; i < half; i++) {
            b[2 * i] = __builtin_shuffle(a[i], a[i + half], low);
            b[2 * i + 1] = __builtin_shuffle(a[i], a[i + half], high);
        }
        _Pragma("GCC unroll 16") for (int i = 0; i < n; i++)
            a[i] = b[i];
    }
    if (count == n && bytes == 16) {
        _Pragma("GCC unroll 16") for (int i = 0; i < n; i++)
            memcpy(out + i * out_pitch, &a[i], 16);
        return;
    }
    memcpy(b, a, sizeof(b));
    for (int64_t i = 0; i < count; i++, out += out_pitch) {
        const uint8_t *row = (const uint8_t *)&b[i];
        int64_t done = 0;
#define QK_PUT_PART(part)                           \
    if (bytes & part) {                             \
        memcpy(out + done, row + done, part);       \
        done += part;                               \
    }
        QK_PUT_PART(16)
        QK_PUT_PART(8)
        QK_PUT_PART(4)
        QK_PUT_PART(2)
        QK_PUT_PART(1)
#undef QK_PUT_PART
    }
}

/* out[c][r] = in[r][c]; the pitches are bytes from row to row. */
#define QK_TURN(size)                                                                                             \
    static void qk_turn_##size(uint8_t *out, int64_t out_pitch, const uint8_t *in, int64_t in_pitch, int64_t rows, \
                               int64_t columns)                                                                   \
    {                                                                                                             \
        const int64_t n = 16 / size;                                                                              \
        for (int64_t c = 0; c < columns; c += n)                                                                  \
            for (int64_t r = 0; r < rows; r += n) {                                                               \
                const int64_t left = rows - r < n ? rows - r : n;                                                 \
                qk_turn_block(size, out + c * out_pitch + r * size, out_pitch, in + r * in_pitch + c * size,      \
                              in_pitch, left, columns - c < n ? columns - c : n, left * size);                    \
            }                                                                                                     \
    }
QK_TURN(1) QK_TURN(2) QK_TURN(4)

/* Copies where elements lie side by side along one axis of the input, and along another one of the output. */
static int qk_copied_by_turns(const qk_copy_step *c, const uint8_t *in, uint8_t *out)
{
    int row = -1, column = -1, rest[QK_DIMS], count = 0;
    for (int d = 0; d < QK_DIMS; d++)
        if (c->size[d] > 1 && c->out_stride[d] == c->bytes && row < 0)
            row = d;
        else if (c->size[d] > 1 && c->in_stride[d] == c->bytes && column < 0)
            column = d;
        else
            rest[count++] = d;
    if (row < 0 || column < 0 || c->bytes > 4 || c->bytes == 3)
        return 0;
    int64_t at[QK_DIMS] = {0};
    for (int d = 0; d >= 0;) {
        const uint8_t *from = in;
        uint8_t *to = out;
        for (int k = 0; k < count; k++) {
            from += at[k] * c->in_stride[rest[k]];
            to += at[k] * c->out_stride[rest[k]];
        }
        (c->bytes == 1 ? qk_turn_1 : c->bytes == 2 ? qk_turn_2 : qk_turn_4)(
            to, c->out_stride[column], from, c->in_stride[row], c->size[row], c->size[column]);
        for (d = count - 1; d >= 0 && ++at[d] == c->size[rest[d]]; d--)
            at[d] = 0;
    }
    return 1;
}

static void qk_run_copy(const qk_copy_step *c, const qk_memory *m)
{
    const uint8_t *base = (c->in_blob ? m->blob : m->arena) + c->source;
    const int64_t *n = c->size, *si = c->in_stride, *so = c->out_stride;
    if (qk_copied_by_turns(c, base, m->arena + c->out))
        return;
    for (int64_t i0 = 0; i0 < n[0]; i0++)
        for (int64_t i1 = 0; i1 < n[1]; i1++)
            for (int64_t i2 = 0; i2 < n[2]; i2++)
                for (int64_t i3 = 0; i3 < n[3]; i3++)
                    for (int64_t i4 = 0; i4 < n[4]; i4++) {
                        const uint8_t *in =
                            base + i0 * si[0] + i1 * si[1] + i2 * si[2] + i3 * si[3] + i4 * si[4];
                        uint8_t *out = m->arena + c->out + i0 * so[0] + i1 * so[1] + i2 * so[2] +
                                       i3 * so[3] + i4 * so[4];
#define QK_COPY_RUNS(size)                          \
    for (int64_t i5 = 0; i5 < n[5]; i5++)           \
        memcpy(out + i5 * so[5], in + i5 * si[5], (size_t)(size));
                        switch (c->bytes) {
                        case 1: QK_COPY_RUNS(1) break;
                        case 2: QK_COPY_RUNS(2) break;
                        case 4: QK_COPY_RUNS(4) break;
                        case 8: QK_COPY_RUNS(8) break;
                        case 16: QK_COPY_RUNS(16) break;
                        case 32: QK_COPY_RUNS(32) break;
                        default: QK_COPY_RUNS(c->bytes)
                        }
#undef QK_COPY_RUNS
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

/* The entry of an index lies where its last bits say, so no index leaves the table. A gather takes as
 * long or longer. */
#define QK_LOOKUP_OF(from, to)                                                                      \
    static void qk_lookup_##from##_##to(void *to_row, const void *row, const void *table, int64_t n, \
                                        uint32_t last)                                              \
    {                                                                                               \
        to##_t *restrict out = to_row;                                                              \
        const from##_t *in = row;                                                                   \
        _Pragma("GCC unroll 8") for (int64_t i = 0; i < n; i++)                                     \
            out[i] = ((const to##_t *)table)[(uint32_t)in[i] & last];                               \
    }
QK_LOOKUP_OF(uint8, int16) QK_LOOKUP_OF(uint8, int32)
QK_LOOKUP_OF(int16, uint8) QK_LOOKUP_OF(int16, int16) QK_LOOKUP_OF(int16, int32)
QK_LOOKUP_OF(int32, uint8) QK_LOOKUP_OF(int32, int16) QK_LOOKUP_OF(int32, int32)
#undef QK_LOOKUP_OF

static void qk_run_lookup(const qk_lookup_step *l, const qk_memory *m)
{
    static void (*const functions[3][3])(void *, const void *, const void *, int64_t, uint32_t) = {
        {0, qk_lookup_uint8_int16, qk_lookup_uint8_int32},
        {qk_lookup_int16_uint8, qk_lookup_int16_int16, qk_lookup_int16_int32},
        {qk_lookup_int32_uint8, qk_lookup_int32_int16, qk_lookup_int32_int32},
    };
    const uint8_t *table = m->blob + l->table;
    const int64_t in_size = qk_size_of(l->in_type), out_size = qk_size_of(l->type);
    for (int64_t i0 = 0; i0 < l->size[0]; i0++)
        for (int64_t i1 = 0; i1 < l->size[1]; i1++) {
            const uint8_t *in = m->arena + l->source + i0 * l->in_stride[0] + i1 * l->in_stride[1];
            uint8_t *out = m->arena + l->out + i0 * l->out_stride[0] + i1 * l->out_stride[1];
            if (l->type == QK_U8 && l->in_type == QK_U8)
                qk_lookup_bytes(out, in, table, l->columns);
            else {
                int64_t done = 0;
#ifdef QK_LINES
                if (l->lined && qk_has_lines)
                    done = qk_lookup_lines(out, (const int16_t *)in, (const qk_line_table *)(m->blob + l->lines), l->columns);
#endif
                functions[l->in_type][l->type](out + done * out_size, in + done * in_size, table, l->columns - done,
                                               (uint32_t)l->entries - 1);
            }
        }
}

#define QK_CHUNK 512

/* x * scale rounded half away from zero, clipped, plus zero. */
static void qk_run_quantize(const qk_quantize_step *q, const qk_memory *m)
{
    const uint8_t *input = m->inputs[q->input] + m->sample * m->input_bytes[q->input];
    const float *scales = (const float *)(m->blob + q->scale);
    const float none = (float)q->none, least = (float)(q->low - 1), most = (float)(q->high + 1);
    const int32_t low = (int32_t)q->low, high = (int32_t)q->high, zero = (int32_t)q->zero;
    const int64_t size = qk_size_of(q->type);
    const int is_colour = q->type == QK_U8 && q->planes == 3 && q->out_plane == 1 && q->out_item == 3;
    int32_t whole[QK_CHUNK];
    uint8_t plane[3][QK_CHUNK];

    for (int64_t r = q->first_row; r < q->rows - q->rows_left; r++)
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
                        v = v == v ? v : none;
                        v = v < least ? least : v;
                        v = v > most ? most : v;
                        int32_t t = (int32_t)(v + __builtin_copysignf(0x1.fffffep-2f, v)); /* the float below 0.5 */
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
    float *restrict out = (float *)output;
    const int32_t zero = (int32_t)d->zero;
#define QK_REALS_OF(stored)                                     \
    if (d->per_item)                                            \
        for (int64_t i = 0; i < d->count; i++)                  \
            out[i] = (float)(((const stored *)in)[i] - zero) * scales[i]; \
    else                                                        \
        for (int64_t i = 0; i < d->count; i++)                  \
            out[i] = (float)(((const stored *)in)[i] - zero) * scales[0];
    if (d->type == QK_U8) {
        QK_REALS_OF(uint8_t)
    } else if (d->type == QK_S16) {
        QK_REALS_OF(int16_t)
    } else {
        QK_REALS_OF(int32_t)
    }
#undef QK_REALS_OF
}
