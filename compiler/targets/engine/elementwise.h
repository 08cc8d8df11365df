/* Chains of elementwise operators as a program over short blocks of int32 in the first-level cache.
 *
 * LOAD      to; p0 address, p1 type + 16 (in the blob), p2 and p3 strides of d0 and d1 in bytes,
 *           b what is taken away (128 for an int8), a 1: one element for all columns; times its
 *           factors; low QK_ADD or QK_MUL: with slot high, else behind factors high is added
 * CONSTANT  to; a 0: p0 int32 a column in the blob, a 1: p0 is the value
 * ADD .. MAX   to = a op b; p1 1: a op p0
 * RESCALE   to = a times factors p0 (mult), p1 (add), p2 (shift); p3 1: a column; b: left shift first
 * ROUND_SHIFT  to = (a + half p0) >> shift p2; p3 1: a column
 * TO_EVEN   to = (a + p0 + (a >> shift p2 & p1)) >> shift p2; p3 1: a column
 * CLIP      to = a within p0 .. p1
 * LEFT      to = a << p0
 * TIMES     to = a times its factors, p0 added
 * TABLE     to = the entry of a: p0 address in the blob, p2 type, S16 or S32; the last bits of a, under the
 *           mask p1, say where it lies
 * STORE     a; p0 address, p1 type, p2 and p3 strides; times its factors, b added, within low .. high
 *
 * Factors are float32 and round as QK_REAL: scaled 0: there are none, 1: sixteen times one, 2: one a column.
 */
#include "step.h"

#define QK_BLOCK 512

#ifndef QK_ENTRIES /* sixteen entries of a table */
#define QK_ENTRIES(name, type)                                           \
    static inline qk_vec name(const uint8_t *table, qk_vec at)           \
    {                                                                    \
        int32_t place[16], entry[16];                                    \
        qk_store(place, at);                                             \
        for (int i = 0; i < 16; i++)                                     \
            entry[i] = ((const type *)table)[place[i]];                  \
        return qk_load(entry);                                           \
    }
QK_ENTRIES(qk_entries_16, int16_t)
QK_ENTRIES(qk_entries_32, int32_t)
#endif

/* All lanes of a block; and row by row: i counts the columns, `row` lanes lie in front of the first one. */
#define QK_EACH(expression)                     \
    {                                           \
        for (int64_t i = 0; i < lanes; i += 16) \
            qk_store(to + i, expression);       \
        break;                                  \
    }
#define QK_EACH_COLUMN(expression)                        \
    {                                                     \
        for (int64_t row = 0; row < lanes; row += pitch)  \
            for (int64_t i = 0; i < pitch; i += 16)       \
                qk_store(to + row + i, expression);       \
        break;                                            \
    }

#ifdef QK_REALS
#define QK_SCALED(x, less) (op->scaled ? qk_times(x, qk_load_real(factors + 4 * own * i), less) : (x))
#else
#define QK_SCALED(x, less) (x)
#endif

/* What a load makes of its elements: times factors, with another slot. */
#define QK_EACH_LOADED(expression)                                                           \
    {                                                                                        \
        for (int64_t row = 0; row < lanes; row += pitch, from += op->p3)                     \
            if (op->low == QK_ADD)                                                           \
                QK_LOADED(expression, qk_add(QK_SCALED(x, none), qk_load(with + row + i)))   \
            else if (op->low == QK_MUL)                                                      \
                QK_LOADED(expression, qk_mul(QK_SCALED(x, none), qk_load(with + row + i)))   \
            else                                                                             \
                QK_LOADED(expression, QK_SCALED(x, less))                                    \
        break;                                                                               \
    }
#define QK_LOADED(expression, made)               \
    for (int64_t i = 0; i < pitch; i += 16) {     \
        const qk_vec x = expression;              \
        qk_store(to + row + i, made);             \
    }

/* Rows i1 and behind it, n columns of each from `column` on. */
static void qk_run_block(const qk_op *op, int64_t count, const qk_memory *m, int64_t i0, int64_t i1, int64_t rows,
                         int64_t column, int64_t n)
{
    int32_t slot[QK_SLOTS][QK_BLOCK] __attribute__((aligned(64)));
    const int64_t pitch = (n + 15) / 16 * 16, lanes = rows * pitch;
    int32_t number[16] __attribute__((aligned(64)));

    for (; count > 0; count--, op++) {
        int32_t *to = slot[op->to];
        const int32_t *a = slot[op->op == QK_LOAD || op->op == QK_CONSTANT ? 0 : op->a];
        const int binary = op->op >= QK_ADD && op->op <= QK_MAX;
        const int32_t *b = binary && op->p1 ? number : slot[binary ? op->b : 0];
        const int64_t along = b != number; /* a slot, or one number */
        if (!along)
            qk_store(number, qk_all((int32_t)op->p0));
        const int64_t every = op->p3 ? 1 : 0; /* factors: one a column, or the same sixteen lanes */
#ifdef QK_REALS
        const int64_t own = op->scaled == 2;
        const uint8_t *factors = m->blob + op->factors + 4 * own * column;
        const qk_vec none = qk_all(QK_REAL_BITS);
#endif
        switch (op->op) {
        case QK_LOAD: {
            const uint8_t *from = (op->p1 & 16 ? m->blob : m->arena) + op->p0 + i0 * op->p2 + i1 * op->p3;
            const qk_vec zero = qk_all((int32_t)op->b);
            const int64_t type = op->p1 & 15;
            const int32_t *with = slot[op->low ? op->high : 0];
#ifdef QK_REALS
            const qk_vec less = qk_all((int32_t)(QK_REAL_BITS - (uint32_t)op->high));
#endif
            if (op->a)
                QK_EACH_LOADED(qk_all((type == QK_U8    ? *from
                                       : type == QK_S16 ? *(const int16_t *)from
                                                        : *(const int32_t *)from) -
                                      (int32_t)op->b));
            if (type == QK_U8)
                QK_EACH_LOADED(qk_sub(qk_load_u8(from + column + i), zero));
            if (type == QK_S16)
                QK_EACH_LOADED(qk_load_s16(from + 2 * (column + i)));
            QK_EACH_LOADED(qk_load((const int32_t *)from + column + i));
        }
        case QK_CONSTANT: {
            const int32_t *values = (const int32_t *)(m->blob + op->p0) + column;
            const qk_vec all = qk_all((int32_t)op->p0);
            if (op->a)
                QK_EACH(all);
            QK_EACH_COLUMN(qk_load(values + i));
        }
        case QK_ADD: QK_EACH(qk_add(qk_load(a + i), qk_load(b + along * i)));
        case QK_SUB: QK_EACH(qk_sub(qk_load(a + i), qk_load(b + along * i)));
        case QK_MUL: QK_EACH(qk_mul(qk_load(a + i), qk_load(b + along * i)));
        case QK_MIN: QK_EACH(qk_min(qk_load(a + i), qk_load(b + along * i)));
        case QK_MAX: QK_EACH(qk_max(qk_load(a + i), qk_load(b + along * i)));
        case QK_RESCALE: {
            const int32_t *mult = (const int32_t *)(m->blob + op->p0) + every * column;
            const int64_t *add = (const int64_t *)(m->blob + op->p1) + every * column;
            const int32_t *shift = (const int32_t *)(m->blob + op->p2) + every * column;
            const int left = (int)op->b;
            if (every) {
                for (int64_t i = 0; i < pitch; i += 16) {
                    const qk_factor f = qk_load_factor(mult + i, add + i, shift + i);
                    for (int64_t at = i; at < lanes; at += pitch)
                        qk_store(to + at, qk_scale(qk_shift_left(qk_load(a + at), left), &f));
                }
                break;
            }
            const qk_factor f = qk_load_factor(mult, add, shift);
            QK_EACH(qk_scale(qk_shift_left(qk_load(a + i), left), &f));
        }
        case QK_ROUND_SHIFT: {
            const int32_t *half = (const int32_t *)(m->blob + op->p0) + every * column;
            const int32_t *bits = (const int32_t *)(m->blob + op->p2) + every * column;
            QK_EACH_COLUMN(qk_shift_right(qk_add(qk_load(a + row + i), qk_load(half + every * i)), qk_load(bits + every * i)));
        }
        case QK_TO_EVEN: {
            const int32_t *below = (const int32_t *)(m->blob + op->p0) + every * column;
            const int32_t *odd = (const int32_t *)(m->blob + op->p1) + every * column;
            const int32_t *bits = (const int32_t *)(m->blob + op->p2) + every * column;
            QK_EACH_COLUMN(qk_to_even(qk_load(a + row + i), qk_load(below + every * i), qk_load(odd + every * i),
                                      qk_load(bits + every * i)));
        }
        case QK_CLIP: {
            const qk_vec low = qk_all((int32_t)op->p0), high = qk_all((int32_t)op->p1);
            QK_EACH(qk_max(qk_min(qk_load(a + i), high), low));
        }
        case QK_LEFT: QK_EACH(qk_shift_left(qk_load(a + i), (int)op->p0));
#ifdef QK_REALS
        case QK_TIMES: {
            const qk_vec less = qk_all((int32_t)(QK_REAL_BITS - (uint32_t)op->p0));
            QK_EACH_COLUMN(QK_SCALED(qk_load(a + row + i), less));
        }
#endif
        case QK_TABLE: {
            const uint8_t *table = m->blob + op->p0;
            const int32_t last = (int32_t)op->p1;
            if (op->p2 == QK_S16)
                for (int64_t i = 0; i < lanes; i += 16)
                    qk_store(to + i, qk_entries_16(table, qk_and(qk_load(a + i), qk_all(last))));
            else
                for (int64_t i = 0; i < lanes; i += 16)
                    qk_store(to + i, qk_entries_32(table, qk_and(qk_load(a + i), qk_all(last))));
            break;
        }
        case QK_STORE: {
            uint8_t *out = m->arena + op->p0 + i0 * op->p2 + i1 * op->p3;
            const int32_t zero = (int32_t)op->b;
            const qk_vec low = qk_all((int32_t)op->low), high = qk_all((int32_t)op->high), added = qk_all(zero);
#ifdef QK_REALS
            const qk_vec less = qk_all((int32_t)(QK_REAL_BITS - (uint32_t)zero));
#endif
#define QK_STORED(x) (op->scaled ? QK_SCALED(x, less) : qk_add(x, added))
            const qk_bounds bounds = qk_byte_bounds((int)op->low, (int)op->high);
            int64_t row = 0, i = 0;
            if (op->p1 == QK_U8 && n <= 16)
                for (; row + 64 <= lanes; row += 64) {
                    uint8_t *four[4];
                    for (int64_t k = 0; k < 4; k++, out += op->p3)
                        four[k] = out + column;
                    qk_store_rows(four, 0, QK_STORED(qk_load(a + row)), QK_STORED(qk_load(a + row + 16)),
                                  QK_STORED(qk_load(a + row + 32)), QK_STORED(qk_load(a + row + 48)), bounds, (int)n);
                }
            for (; row < lanes; row += pitch, out += op->p3, i = 0) {
                for (; op->p1 == QK_U8 && i + 64 <= n; i += 64) {
                    uint8_t *four[4];
                    qk_vec x[4];
                    for (int64_t k = 0; k < 4; k++, i += 16) {
                        four[k] = out + column + i;
                        x[k] = QK_STORED(qk_load(a + row + i));
                    }
                    i -= 64;
                    qk_store_rows(four, 0, x[0], x[1], x[2], x[3], bounds, 16);
                }
                for (; i < pitch; i += 16) {
                    const int k = n - i < 16 ? (int)(n - i) : 16;
                    const qk_vec x = qk_max(qk_min(QK_STORED(qk_load(a + row + i)), high), low);
                    if (op->p1 == QK_U8)
                        qk_store_u8(out + column + i, x, k);
                    else if (op->p1 == QK_S16)
                        qk_store_s16(out + 2 * (column + i), x, k);
                    else
                        qk_store_s32(out + 4 * (column + i), x, k);
                }
            }
#undef QK_STORED
            break;
        }
        }
    }
}

/* Short rows are run together. */
static void qk_run_elementwise(const qk_elementwise_step *e, const qk_memory *m)
{
    const qk_op *program = (const qk_op *)(m->blob + e->program);
    const int64_t n = e->columns < QK_BLOCK ? e->columns : QK_BLOCK;
    const int64_t rows = e->d1 > 1 ? QK_BLOCK / ((n + 15) / 16 * 16) : 1;
    for (int64_t i0 = e->first_0; i0 < e->d0; i0++)
        for (int64_t i1 = e->first_1; i1 < e->d1; i1 += rows)
            for (int64_t c = e->first_column; c < e->columns; c += n)
                qk_run_block(program, e->count, m, i0, i1, e->d1 - i1 < rows ? e->d1 - i1 : rows, c,
                             e->columns - c < n ? e->columns - c : n);
}
