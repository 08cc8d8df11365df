/* Softmax and standardization of integers, a row at a time. Plain C, vectorised by the compiler. */
#include "step.h"

static inline int32_t qk_element(const uint8_t *row, int64_t i, int64_t type)
{
    return type == QK_U8 ? row[i] : type == QK_S16 ? ((const int16_t *)row)[i] : ((const int32_t *)row)[i];
}

/* Entries of rows of bytes: their three bytes by tables of 256, of as many rows as the scratch holds. */
static void qk_softmax_entries(const qk_softmax_step *s, const qk_memory *m, int64_t first, int64_t rows, int32_t *e)
{
    const int64_t columns = s->columns, n = rows * columns, padded = (n + 63) / 64 * 64;
    const uint8_t *table = m->blob + s->bytes;
    uint8_t *place = (uint8_t *)(e + n), *low = place + padded, *middle = low + padded, *high = middle + padded;
    for (int64_t r = 0; r < rows; r++) {
        const uint8_t *in = m->arena + s->source + (first + r) * s->in_stride;
        uint8_t *restrict to = place + r * columns, top = 0;
        for (int64_t i = 0; i < columns; i++)
            top = in[i] > top ? in[i] : top;
        for (int64_t i = 0; i < columns; i++)
            to[i] = (uint8_t)(top - in[i]);
    }
    memset(place + n, 0, (size_t)(padded - n));
    qk_lookup_bytes(low, place, table, padded);
    qk_lookup_bytes(middle, place, table + 256, padded);
    qk_lookup_bytes(high, place, table + 512, padded);
    for (int64_t i = 0; i < n; i++)
        e[i] = low[i] | middle[i] << 8 | high[i] << 16;
}

/* The same of rows of other types; the entries end with a whole vector. */
#define QK_PLACES(type)                                                                       \
    static void qk_places_##type(const uint8_t *row, int64_t n, uint32_t last, int32_t *to)   \
    {                                                                                         \
        const type##_t *in = (const type##_t *)row;                                           \
        int32_t top = INT32_MIN;                                                              \
        for (int64_t i = 0; i < n; i++)                                                       \
            top = in[i] > top ? in[i] : top;                                                  \
        for (int64_t i = 0; i < n; i++) {                                                     \
            const uint32_t place = (uint32_t)top - (uint32_t)in[i];                           \
            to[i] = (int32_t)(place < last ? place : last);                                   \
        }                                                                                     \
    }
QK_PLACES(uint8) QK_PLACES(int16) QK_PLACES(int32)
#undef QK_PLACES

static void qk_softmax_wide(const qk_softmax_step *s, const qk_memory *m, int64_t first, int64_t rows, int32_t *e)
{
    const int64_t columns = s->columns, n = rows * columns;
    for (int64_t r = 0; r < rows; r++)
        (s->in_type == QK_U8 ? qk_places_uint8 : s->in_type == QK_S16 ? qk_places_int16 : qk_places_int32)(
            m->arena + s->source + (first + r) * s->in_stride, columns, (uint32_t)s->entries - 1, e + r * columns);
    memset(e + n, 0, 64);
    for (int64_t i = 0; i < n; i += 16)
        qk_store(e + i, qk_entries_32(m->blob + s->table, e + i, INT32_MAX));
}

/* out = floor((e * 2^(bits + 1) + S) / (2 S)), e = table[max - x], S = sum of e. Numerator below
 * 2^52 and quotient below 2^21: the double quotient, rounded once, has the exact floor, since a
 * quotient that is no integer is at least 1 / (2 S) > 2^-32 away from one. */
static void qk_run_softmax(const qk_softmax_step *s, const qk_memory *m)
{
    int32_t *e = (int32_t *)(m->arena + s->scratch);
    for (int64_t first = 0; first < s->rows; first += s->together) {
        const int64_t rows = s->rows - first < s->together ? s->rows - first : s->together;
        if (s->in_bytes)
            qk_softmax_entries(s, m, first, rows, e);
        else
            qk_softmax_wide(s, m, first, rows, e);
        for (int64_t r = 0; r < rows; r++) {
            const int32_t *own = e + r * s->columns;
            int32_t *out = (int32_t *)(m->arena + s->out + (first + r) * s->out_stride), sum = 0;
            for (int64_t i = 0; i < s->columns; i++)
                sum = (int32_t)((uint32_t)sum + (uint32_t)own[i]);
            const int64_t total = sum < 1 ? 1 : sum;
            const double scale = (double)((int64_t)1 << (s->out_bits + 1)), half = (double)total;
            const double whole = 2.0 * (double)total;
            if (total << s->out_bits < (int64_t)1 << 47) {
                /* A half more is no integer either, so the quotient is farther from one than doubles err. */
                const double inverse = 1.0 / whole, up = scale * inverse, start = (half + 0.5) * inverse;
                for (int64_t i = 0; i < s->columns; i++)
                    out[i] = (int32_t)((double)own[i] * up + start);
            } else {
                for (int64_t i = 0; i < s->columns; i++)
                    out[i] = (int32_t)(((double)own[i] * scale + half) / whole);
            }
        }
    }
}

/* Sums of a row, and of its squares; those of 16 bits have squares of 31. */
#define QK_SUMS(type, wide, product)                                       \
    static void qk_sums_##type(const uint8_t *row, int64_t n, int64_t *sums) \
    {                                                                      \
        const type##_t *in = (const type##_t *)row;                        \
        wide total = 0, squares = 0;                                       \
        for (int64_t i = 0; i < n; i++) {                                  \
            total += in[i];                                                \
            squares += (product)in[i] * in[i];                             \
        }                                                                  \
        sums[0] = total;                                                   \
        sums[1] = squares;                                                 \
    }
QK_SUMS(uint8, int32_t, int32_t) QK_SUMS(int16, int64_t, int32_t) QK_SUMS(int32, int64_t, int64_t)
#undef QK_SUMS

#define QK_ROWS_TOGETHER 64 /* whose roots are taken at once */
#define QK_MOST_BYTES 32768 /* whose squares 32 bits hold */

static void qk_standardize_rows(const qk_standardize_step *s, const qk_memory *m, int64_t first, int64_t rows)
{
    const uint8_t *in = m->arena + s->source + first * s->in_stride;
    const int64_t n = s->columns, zero = s->zero, factor = (int64_t)1 << (s->out_bits + s->root_bits + 1);
    int64_t total[QK_ROWS_TOGETHER] = {0}, squares[QK_ROWS_TOGETHER] = {0}, root[QK_ROWS_TOGETHER];
    double up[QK_ROWS_TOGETHER], start[QK_ROWS_TOGETHER];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t at = 0; at < n; at += QK_MOST_BYTES) {
            int64_t sums[2];
            const uint8_t *part = in + r * s->in_stride + at * qk_size_of(s->in_type);
            (s->in_type == QK_U8 ? qk_sums_uint8 : s->in_type == QK_S16 ? qk_sums_int16 : qk_sums_int32)(
                part, n - at < QK_MOST_BYTES ? n - at : QK_MOST_BYTES, sums);
            total[r] += sums[0];
            squares[r] += sums[1];
        }
    for (int64_t r = 0; r < rows; r++) {
        squares[r] += n * zero * zero - 2 * zero * total[r];
        total[r] = s->centred ? total[r] - n * zero : 0;
        int64_t spread = n * squares[r] - total[r] * total[r] + s->epsilon;
        spread = (spread > 0 ? spread : 0) << (2 * s->root_bits);
        root[r] = qk_isqrt(spread);
        root[r] = root[r] < 1 ? 1 : root[r];
        /* A quotient of half a numerator more is never an integer, and farther from one than doubles err;
         * it is not negative with `most` more, so it is cut off below. */
        const double inverse = 0.5 / (double)root[r];
        const double away = (double)(n * zero + total[r]) * (double)factor - (double)root[r] - 0.5;
        up[r] = (double)n * (double)factor * inverse;
        start[r] = (double)s->most - away * inverse;
    }
    const int64_t widest = s->in_type == QK_U8 ? 255 : 1 << 16, small = (int64_t)1 << 46;
    const int fits = s->in_type != QK_S32 && n * widest < small / factor;
    for (int64_t r = 0; r < rows; r++, in += s->in_stride) {
        int32_t *out = (int32_t *)(m->arena + s->out + (first + r) * s->out_stride);
        if (fits && root[r] < small / s->most) {
            const double times = up[r], from = start[r];
            const int32_t most = (int32_t)s->most;
            const int16_t *wide = (const int16_t *)in;
#define QK_QUOTIENTS(x)             \
    for (int64_t i = 0; i < n; i++) \
        out[i] = (int32_t)((double)(x) * times + from) - most;
            if (s->in_type == QK_U8)
                QK_QUOTIENTS(in[i])
            else
                QK_QUOTIENTS(wide[i])
#undef QK_QUOTIENTS
            continue;
        }
        const int64_t whole = 2 * root[r];
        const double inverse = 1.0 / (double)whole;
        for (int64_t i = 0; i < n; i++) {
            const int64_t x = qk_element(in, i, s->in_type) - (int32_t)zero;
            const int64_t top = (n * x - total[r]) * factor + root[r];
            int64_t q = (int64_t)((double)top * inverse);
            int64_t rest = top - q * whole;
            q -= rest < 0;
            rest += rest < 0 ? whole : 0;
            q += rest >= whole;
            rest -= rest >= whole ? whole : 0;
            q -= rest < 0;
            out[i] = (int32_t)q;
        }
    }
}

/* See nn.integer_standardize. The quotient is below 2^30, so the product with the reciprocal is
 * off by at most one, which the exact remainder corrects. */
static void qk_run_standardize(const qk_standardize_step *s, const qk_memory *m)
{
    const int64_t many = 16384 / s->columns, block = many < 1 ? 1 : many < QK_ROWS_TOGETHER ? many : QK_ROWS_TOGETHER;
    for (int64_t r = 0; r < s->rows; r += block)
        qk_standardize_rows(s, m, r, s->rows - r < block ? s->rows - r : block);
}
