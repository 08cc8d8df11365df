/* Softmax and standardization of integers, a row at a time. Plain C, vectorised by the compiler. */
#include "step.h"

static inline int32_t qk_element(const uint8_t *row, int64_t i, int64_t type)
{
    return type == QK_U8 ? row[i] : type == QK_S16 ? ((const int16_t *)row)[i] : ((const int32_t *)row)[i];
}

/* out = floor((e * 2^(bits + 1) + S) / (2 S)), e = table[max - x], S = sum of e. Numerator below
 * 2^52 and quotient below 2^21: the double quotient, rounded once, has the exact floor, since a
 * quotient that is no integer is at least 1 / (2 S) > 2^-32 away from one. */
static void qk_run_softmax(const qk_softmax_step *s, const qk_memory *m)
{
    const int32_t *table = (const int32_t *)(m->blob + s->table);
    int32_t *e = (int32_t *)(m->arena + s->scratch);
    for (int64_t r = 0; r < s->rows; r++) {
        const uint8_t *in = m->arena + s->source + r * s->in_stride;
        int32_t *out = (int32_t *)(m->arena + s->out + r * s->out_stride);
        int32_t top = INT32_MIN;
        int64_t total = 0;
        if (s->in_type == QK_U8) {
            uint8_t largest = 0;
            for (int64_t i = 0; i < s->columns; i++)
                largest = in[i] > largest ? in[i] : largest;
            top = largest;
        } else {
            for (int64_t i = 0; i < s->columns; i++) {
                const int32_t x = qk_element(in, i, s->in_type);
                top = x > top ? x : top;
            }
        }
        for (int64_t i = 0; i < s->columns; i++) {
            const int64_t place = (int64_t)top - qk_element(in, i, s->in_type);
            e[i] = table[place < s->entries - 1 ? place : s->entries - 1];
            total += e[i];
        }
        if (total < 1)
            total = 1;
        const double scale = (double)((int64_t)1 << (s->out_bits + 1)), half = (double)total;
        const double whole = 2.0 * (double)total;
        for (int64_t i = 0; i < s->columns; i++)
            out[i] = (int32_t)(((double)e[i] * scale + half) / whole);
    }
}

/* See nn.integer_standardize. The quotient is below 2^30, so the product with the reciprocal is
 * off by at most one, which the exact remainder corrects. */
static void qk_run_standardize(const qk_standardize_step *s, const qk_memory *m)
{
    for (int64_t r = 0; r < s->rows; r++) {
        const uint8_t *in = m->arena + s->source + r * s->in_stride;
        int32_t *out = (int32_t *)(m->arena + s->out + r * s->out_stride);
        int64_t total = 0, squares = 0;
        if (s->in_type == QK_U8 && s->columns <= 32768) {
            int32_t sum = 0, sum_of_squares = 0; /* below 2^31 */
            for (int64_t i = 0; i < s->columns; i++) {
                const int32_t x = in[i] - (int32_t)s->zero;
                sum += x;
                sum_of_squares += x * x;
            }
            total = sum;
            squares = sum_of_squares;
        } else {
            for (int64_t i = 0; i < s->columns; i++) {
                const int64_t x = qk_element(in, i, s->in_type) - (int32_t)s->zero;
                total += x;
                squares += x * x;
            }
        }
        if (!s->centred)
            total = 0;
        int64_t spread = s->columns * squares - total * total + s->epsilon;
        spread = (spread > 0 ? spread : 0) << (2 * s->root_bits);
        int64_t root = qk_isqrt(spread);
        root = root < 1 ? 1 : root;
        const int64_t whole = 2 * root, factor = (int64_t)1 << (s->out_bits + s->root_bits + 1);
        const int64_t limit = (int64_t)1 << 31, widest = s->in_type == QK_U8 ? 255 : 1 << 16;
        const int64_t most = s->in_type == QK_S32 ? limit : 2 * s->columns * widest;
        if (most < limit && most < (((int64_t)1 << 52) - root) / factor) {
            /* Doubles hold the numerator, and the quotient is too far from an integer to become one. */
            const int32_t n = (int32_t)s->columns, away = n * (int32_t)s->zero + (int32_t)total;
            const double up = (double)factor, half = (double)root, down = (double)whole;
            const int16_t *wide = (const int16_t *)in;
#define QK_QUOTIENTS(x)                                                             \
    for (int64_t i = 0; i < s->columns; i++) {                                      \
        const double quotient = ((double)(n * (x) - away) * up + half) / down;      \
        const int32_t q = (int32_t)quotient;                                        \
        out[i] = q - ((double)q > quotient);                                        \
    }
            if (s->in_type == QK_U8)
                QK_QUOTIENTS(in[i])
            else
                QK_QUOTIENTS(wide[i])
#undef QK_QUOTIENTS
            continue;
        }
        const double inverse = 1.0 / (double)whole;
        for (int64_t i = 0; i < s->columns; i++) {
            const int64_t x = qk_element(in, i, s->in_type) - (int32_t)s->zero;
            const int64_t top = (s->columns * x - total) * factor + root;
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
