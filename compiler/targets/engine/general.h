/* Steps that take any strides and 64 bits: slower than the others, and complete.
 *
 * A program over blocks of int64; sums and products wrap as int64 does.
 * LOAD      to; p0 address, p1 type + 16 (in the blob), p2 what is taken away, stride
 * STORE     a; p0 address, p1 type, p2 what is added, stride
 * CONSTANT  to = p0
 * ADD .. OR, LESS, EQUAL   to = a op b
 * LEFT, RIGHT   to = a shifted by b
 * FLOORED   to = a / b towards minus infinity; 0 where b is 0
 * ROOT      to = the floor of the root of a, 0 <= a < 2^62
 * SELECT    to = a ? b : c
 * WRAP      to = the last p0 bits of a, with a sign if p1
 * FADD .. FMAX   to = a op b, float32 by their bits; FMIN and FMAX give NaN where one is
 * FROUND, FEVEN  to = the whole number next to a, halves away from 0, or to the even one
 * TO_REAL   to = the float32 next to a
 * TO_INT    to = a without its places behind the point, limited to p0 bits, with a sign if p1; NaN gives 0
 */
#include "step.h"

#define QK_WIDE_BLOCK 128

static inline int64_t qk_get(const uint8_t *at, int64_t type)
{
    return type == QK_U8 ? *at : type == QK_S16 ? *(const int16_t *)at
         : type == QK_S32 ? *(const int32_t *)at : *(const int64_t *)at;
}

/* Loops of one type: vectors where numbers lie side by side. */
#define QK_EACH_TYPE(BODY)   \
    if (type == QK_U8)       \
        BODY(uint8_t)        \
    else if (type == QK_S16) \
        BODY(int16_t)        \
    else if (type == QK_S32) \
        BODY(int32_t)        \
    else                     \
        BODY(int64_t)

/* n numbers without `zero`. */
static void qk_read(int64_t *to, const uint8_t *from, int64_t stride, int64_t type, int64_t zero, int64_t n)
{
#define QK_READ(T)                                        \
    if (stride == (int64_t)sizeof(T))                     \
        for (int64_t i = 0; i < n; i++)                   \
            to[i] = (int64_t)((const T *)from)[i] - zero; \
    else                                                  \
        for (int64_t i = 0; i < n; i++)                   \
            to[i] = (int64_t) * (const T *)(from + i * stride) - zero;
    QK_EACH_TYPE(QK_READ)
}

/* n numbers and `zero`. */
static void qk_write(uint8_t *to, int64_t stride, int64_t type, const int64_t *from, int64_t zero, int64_t n)
{
#define QK_WRITE(T)                             \
    if (stride == (int64_t)sizeof(T))           \
        for (int64_t i = 0; i < n; i++)         \
            ((T *)to)[i] = (T)(from[i] + zero); \
    else                                        \
        for (int64_t i = 0; i < n; i++)         \
            *(T *)(to + i * stride) = (T)(from[i] + zero);
    QK_EACH_TYPE(QK_WRITE)
}

static inline int64_t qk_floored(int64_t a, int64_t b)
{
    if (b == 0)
        return 0;
    if (b == -1)
        return (int64_t)(0 - (uint64_t)a);
    const int64_t q = a / b;
    return q - (q * b != a && (a < 0) != (b < 0));
}

static inline int64_t qk_wrap(int64_t a, int64_t bits, int64_t is_signed)
{
    const uint64_t kept = (uint64_t)a << (64 - bits);
    return is_signed ? (int64_t)kept >> (64 - bits) : (int64_t)(kept >> (64 - bits));
}

static inline float qk_float(int64_t a)
{
    const int32_t bits = (int32_t)a;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static inline int64_t qk_bits_of(float x)
{
    int32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

/* From 2^23 on every float32 is whole; the largest below one half reaches the next from a half on. */
static inline float qk_round_away(float x)
{
    if (!(__builtin_fabsf(x) < 8388608.0f))
        return x;
    return __builtin_copysignf((float)(int32_t)(x + __builtin_copysignf(0x1.fffffep-2f, x)), x);
}

static inline float qk_round_even(float x)
{
    if (!(__builtin_fabsf(x) < 8388608.0f))
        return x;
    return __builtin_copysignf((__builtin_fabsf(x) + 8388608.0f) - 8388608.0f, x);
}

static inline int64_t qk_whole(float x, int64_t bits, int64_t is_signed)
{
    const double past = (double)((uint64_t)1 << (bits - is_signed)), wide = x;
    const int64_t most = (int64_t)(((uint64_t)1 << (bits - is_signed)) - 1), least = is_signed ? -most - 1 : 0;
    return x != x ? 0 : wide >= past ? most : wide <= (double)least ? least : (int64_t)wide;
}

#define QK_WIDE_EACH(expression)        \
    {                                   \
        for (int64_t i = 0; i < n; i++) \
            to[i] = expression;         \
        break;                          \
    }

static void qk_wide_block(const qk_wide_op *op, int64_t count, const qk_memory *m, const int64_t *at, int64_t n)
{
    int64_t slot[QK_WIDE_SLOTS][QK_WIDE_BLOCK];

    for (; count > 0; count--, op++) {
        int64_t *to = slot[op->to];
        const int64_t *a = slot[op->a], *b = slot[op->b], *c = slot[op->c];
        const int64_t step = op->stride[QK_DIMS - 1], type = op->p1 & 15;
        int64_t place = op->p0;
        for (int d = 0; d < QK_DIMS && op->op <= QK_WIDE_STORE; d++)
            place += at[d] * op->stride[d];
        switch (op->op) {
        case QK_WIDE_LOAD: qk_read(to, (op->p1 & 16 ? m->blob : m->arena) + place, step, type, op->p2, n); break;
        case QK_WIDE_STORE: qk_write(m->arena + place, step, type, a, op->p2, n); break;
        case QK_WIDE_CONSTANT: QK_WIDE_EACH(op->p0);
        case QK_WIDE_ADD: QK_WIDE_EACH((int64_t)((uint64_t)a[i] + (uint64_t)b[i]));
        case QK_WIDE_SUB: QK_WIDE_EACH((int64_t)((uint64_t)a[i] - (uint64_t)b[i]));
        case QK_WIDE_MUL: QK_WIDE_EACH((int64_t)((uint64_t)a[i] * (uint64_t)b[i]));
        case QK_WIDE_MIN: QK_WIDE_EACH(a[i] < b[i] ? a[i] : b[i]);
        case QK_WIDE_MAX: QK_WIDE_EACH(a[i] > b[i] ? a[i] : b[i]);
        case QK_WIDE_AND: QK_WIDE_EACH(a[i] & b[i]);
        case QK_WIDE_OR: QK_WIDE_EACH(a[i] | b[i]);
        case QK_WIDE_LEFT: QK_WIDE_EACH((int64_t)((uint64_t)a[i] << (b[i] & 63)));
        case QK_WIDE_RIGHT: QK_WIDE_EACH(a[i] >> (b[i] & 63));
        case QK_WIDE_LESS: QK_WIDE_EACH(a[i] < b[i]);
        case QK_WIDE_EQUAL: QK_WIDE_EACH(a[i] == b[i]);
        case QK_WIDE_FLOORED: QK_WIDE_EACH(qk_floored(a[i], b[i]));
        case QK_WIDE_ROOT: QK_WIDE_EACH(qk_isqrt(a[i]));
        case QK_WIDE_SELECT: QK_WIDE_EACH(a[i] ? b[i] : c[i]);
        case QK_WIDE_WRAP: QK_WIDE_EACH(qk_wrap(a[i], op->p0, op->p1));
        case QK_WIDE_FADD: QK_WIDE_EACH(qk_bits_of(qk_float(a[i]) + qk_float(b[i])));
        case QK_WIDE_FSUB: QK_WIDE_EACH(qk_bits_of(qk_float(a[i]) - qk_float(b[i])));
        case QK_WIDE_FMUL: QK_WIDE_EACH(qk_bits_of(qk_float(a[i]) * qk_float(b[i])));
        case QK_WIDE_FMIN: QK_WIDE_EACH(qk_float(a[i]) <= qk_float(b[i]) || qk_float(a[i]) != qk_float(a[i]) ? a[i] : b[i]);
        case QK_WIDE_FMAX: QK_WIDE_EACH(qk_float(a[i]) >= qk_float(b[i]) || qk_float(a[i]) != qk_float(a[i]) ? a[i] : b[i]);
        case QK_WIDE_FROUND: QK_WIDE_EACH(qk_bits_of(qk_round_away(qk_float(a[i]))));
        case QK_WIDE_FEVEN: QK_WIDE_EACH(qk_bits_of(qk_round_even(qk_float(a[i]))));
        case QK_WIDE_TO_REAL: QK_WIDE_EACH(qk_bits_of((float)a[i]));
        case QK_WIDE_TO_INT: QK_WIDE_EACH(qk_whole(qk_float(a[i]), op->p0, op->p1));
        }
    }
}

/* The next position of loops over all axes but the last `inner`; 0 behind the last one. */
static int qk_next(int64_t *at, const int64_t *size, int inner)
{
    for (int d = QK_DIMS - 1 - inner; d >= 0; d--) {
        if (++at[d] < size[d])
            return 1;
        at[d] = 0;
    }
    return 0;
}

static void qk_run_wide(const qk_wide_step *w, const qk_memory *m)
{
    const qk_wide_op *program = (const qk_wide_op *)(m->blob + w->program);
    const int64_t columns = w->size[QK_DIMS - 1];
    int64_t at[QK_DIMS] = {0};
    do
        for (int64_t first = 0; first < columns; first += QK_WIDE_BLOCK) {
            at[QK_DIMS - 1] = first;
            qk_wide_block(program, w->count, m, at, columns - first < QK_WIDE_BLOCK ? columns - first : QK_WIDE_BLOCK);
        }
    while (qk_next(at, w->size, 1));
}

static inline const uint8_t *qk_from(const qk_memory *m, int64_t type, int64_t place)
{
    return (type & 16 ? m->blob : m->arena) + place;
}

#define QK_PLACE(compare)                                \
    for (int64_t i = 0; i < n; i++) {                    \
        const int better = x[i] compare best[i];         \
        best[i] = better ? x[i] : best[i];               \
        found[i] = better ? number + i * per : found[i]; \
    }

/* n neighbours along an axis join what is there of each; they are number `number`, `per` apart. */
static void qk_join(
    const qk_reduce_step *r, const uint8_t *row, const uint8_t *factor, int axis, int64_t n,
    int64_t number, int64_t per, int64_t *best, int64_t *found)
{
    int64_t x[QK_WIDE_BLOCK], y[QK_WIDE_BLOCK];
    qk_read(x, row, r->in_stride[axis], r->type & 15, r->zero, n);
    if (r->how == QK_REDUCE_DOT) {
        qk_read(y, factor, r->other_stride[axis], r->other_type & 15, r->other_zero, n);
        for (int64_t i = 0; i < n; i++)
            x[i] = (int64_t)((uint64_t)x[i] * (uint64_t)y[i]);
    }
    if (r->how == QK_REDUCE_MAX)
        for (int64_t i = 0; i < n; i++)
            found[i] = best[i] = x[i] > best[i] ? x[i] : best[i];
    else if (r->how == QK_REDUCE_ARGMAX && r->last)
        QK_PLACE(>=)
    else if (r->how == QK_REDUCE_ARGMAX)
        QK_PLACE(>)
    else
        for (int64_t i = 0; i < n; i++)
            found[i] = (int64_t)((uint64_t)found[i] + (uint64_t)x[i]);
}

/* The last of n lanes that each hold a part of one result, joined into the first. */
static void qk_join_lanes(const qk_reduce_step *r, int64_t n, int64_t *best, int64_t *found)
{
    for (int64_t i = 1; i < n; i++)
        if (r->how == QK_REDUCE_SUM || r->how == QK_REDUCE_DOT)
            found[0] = (int64_t)((uint64_t)found[0] + (uint64_t)found[i]);
        else if (best[i] > best[0] || (best[i] == best[0] && (found[i] > found[0]) == (r->last != 0))) {
            best[0] = best[i];
            found[0] = found[i];
        }
}

/* n results that are neighbours along `axis`, or one whose terms are: lanes. */
static void qk_reduce_block(
    const qk_reduce_step *r, const uint8_t *from, const uint8_t *with, uint8_t *out, int axis, int64_t n)
{
    const int kept = QK_DIMS - (int)r->reduced, lanes = axis >= kept;
    const int64_t terms = lanes ? r->size[axis] : 1;
    int64_t best[QK_WIDE_BLOCK], found[QK_WIDE_BLOCK] = {0}, at[QK_DIMS] = {0}, number = 0;
    for (int64_t i = 0; i < QK_WIDE_BLOCK; i++)
        best[i] = INT64_MIN;
    for (int d = QK_DIMS; d >= kept;) {
        const uint8_t *row = from, *factor = with;
        for (d = kept; d < QK_DIMS - lanes; d++) {
            row += at[d] * r->in_stride[d];
            factor += at[d] * r->other_stride[d];
        }
        for (int64_t first = 0, held; first < terms; first += held, number += held) {
            held = terms - first < QK_WIDE_BLOCK ? terms - first : QK_WIDE_BLOCK;
            qk_join(
                r, row + first * r->in_stride[axis], factor + first * r->other_stride[axis], axis,
                lanes ? held : n, number, lanes, best, found);
        }
        for (d = QK_DIMS - 1 - lanes; d >= kept && ++at[d] == r->size[d]; d--)
            at[d] = 0;
    }
    if (lanes)
        qk_join_lanes(r, terms < QK_WIDE_BLOCK ? terms : QK_WIDE_BLOCK, best, found);
    qk_write(out, lanes ? 0 : r->out_stride[axis], r->out_type, found, r->out_zero, n);
}

static void qk_run_reduce(const qk_reduce_step *r, const qk_memory *m)
{
    const int kept = QK_DIMS - (int)r->reduced, last = kept > 0 ? kept - 1 : 0;
    /* Few results side by side: the terms of each are. */
    const int lanes = kept == 0 || r->size[last] < 8;
    const int64_t columns = kept > 0 ? r->size[last] : 1, most = lanes ? 1 : QK_WIDE_BLOCK;
    int64_t at[QK_DIMS] = {0};
    do
        for (int64_t first = 0; first < columns; first += most) {
            const uint8_t *from = qk_from(m, r->type, r->source), *with = qk_from(m, r->other_type, r->other);
            uint8_t *out = m->arena + r->out;
            at[last] = first;
            for (int d = 0; d < kept; d++) {
                from += at[d] * r->in_stride[d];
                with += at[d] * r->other_stride[d];
                out += at[d] * r->out_stride[d];
            }
            const int64_t n = columns - first < most ? columns - first : most;
            qk_reduce_block(r, from, with, out, lanes ? QK_DIMS - 1 : last, n);
        }
    while (at[last] = 0, qk_next(at, r->size, QK_DIMS - last));
}

static void qk_run_gather(const qk_gather_step *g, const qk_memory *m)
{
    const int64_t *offset = (const int64_t *)(m->blob + g->offsets);
    const uint8_t *from = m->arena + g->source;
    uint8_t *out = m->arena + g->out;
#define QK_GATHER_RUNS(size)               \
    for (int64_t i = 0; i < g->count; i++) \
        memcpy(out + i * (size), from + offset[i], (size_t)(size));
    switch (g->bytes) {
    case 1: QK_GATHER_RUNS(1) break;
    case 2: QK_GATHER_RUNS(2) break;
    case 4: QK_GATHER_RUNS(4) break;
    default: QK_GATHER_RUNS(g->bytes)
    }
#undef QK_GATHER_RUNS
}

static void qk_run_take(const qk_take_step *t, const qk_memory *m)
{
    const int64_t item = qk_size_of(t->index_type);
    const uint8_t *data = (t->in_blob ? m->blob : m->arena) + t->source;
    uint8_t *out = m->arena + t->out;
    for (int64_t o = 0; o < t->outer; o++, data += t->rows * t->bytes)
        for (int64_t i = 0; i < t->count; i++, out += t->bytes) {
            int64_t row = qk_get(m->arena + t->index + (o * t->index_group + i) * item, t->index_type) - t->index_zero;
            if (t->wraps) {
                row = row % t->rows;
                row += row < 0 ? t->rows : 0;
            } else {
                row = row < t->first ? 0 : row - t->first;
                row = row < t->rows ? row : t->rows - 1;
            }
            memcpy(out, data + row * t->bytes, (size_t)t->bytes);
        }
}

#define QK_SCATTER_ROW(T, expression)                     \
    {                                                     \
        T *const a = (T *)to;                             \
        for (int64_t j = 0; j < n; j++)                   \
            a[j] = (T)(expression);                       \
        break;                                            \
    }

/* One update of n elements of one type; a sum of 64 bits wraps. */
#define QK_SCATTER_OF(T, U)                                                                   \
    {                                                                                         \
        const U *const b = (const U *)from;                                                   \
        switch (how) {                                                                        \
        case QK_SCATTER_UPDATE: QK_SCATTER_ROW(T, b[j])                                       \
        case QK_SCATTER_ADD: QK_SCATTER_ROW(T, (uint64_t)a[j] + (uint64_t)b[j] - (uint64_t)zero) \
        case QK_SCATTER_MAX: QK_SCATTER_ROW(T, a[j] > b[j] ? a[j] : b[j])                     \
        case QK_SCATTER_MIN: QK_SCATTER_ROW(T, a[j] < b[j] ? a[j] : b[j])                     \
        }                                                                                     \
    }

static void qk_run_scatter(const qk_scatter_step *t, const qk_memory *m)
{
    const int64_t n = t->columns, type = t->type & 15, how = t->how, zero = t->zero;
    const int64_t size = qk_size_of(type), step = qk_size_of(t->index_type & 15);
    const uint8_t *index = qk_from(m, t->index_type, t->index), *from = qk_from(m, t->type, t->source);
    for (int64_t i = 0; i < t->count; i++, index += step, from += n * size) {
        int64_t row = qk_get(index, t->index_type & 15) - t->index_zero;
        row = row < 0 ? 0 : row >= t->rows ? t->rows - 1 : row;
        uint8_t *to = m->arena + t->out + row * n * qk_size_of(t->out_type);
        if (t->out_type != type) { /* sums in 32 bits */
            int32_t *const a = (int32_t *)to;
            if (type == QK_U8)
                for (int64_t j = 0; j < n; j++)
                    a[j] += from[j] - (int32_t)zero;
            else
                for (int64_t j = 0; j < n; j++)
                    a[j] += ((const int16_t *)from)[j] - (int32_t)zero;
        } else if (type == QK_U8)
            QK_SCATTER_OF(uint8_t, uint8_t)
        else if (type == QK_S16)
            QK_SCATTER_OF(int16_t, int16_t)
        else if (type == QK_S32)
            QK_SCATTER_OF(int32_t, int32_t)
        else
            QK_SCATTER_OF(int64_t, int64_t)
    }
}
