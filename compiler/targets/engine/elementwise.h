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
 * TIMES     to = a times its factors, p0 added, p1 1: and slot b, within low .. high
 * TABLE     to = the entry of a: p0 address in the blob, p2 type, S16 or S32; the last bits of a, under the
 *           mask p1, say where it lies
 * STORE     a; p0 address, p1 type, p2 and p3 strides; times its factors, b added, within low .. high
 *
 * Factors are float32 and round as QK_REAL: scaled 0: there are none, 1: sixteen times one, 2: one a column.
 */
#include "step.h"

#define QK_BLOCK 512

#ifndef QK_ENTRIES /* sixteen entries of a table */
#define QK_ENTRIES(name, type)                                                       \
    static inline qk_vec name(const uint8_t *table, const int32_t *at, int32_t last) \
    {                                                                                \
        int32_t entry[16];                                                           \
        for (int i = 0; i < 16; i++)                                                 \
            entry[i] = ((const type *)table)[at[i] & last];                          \
        return qk_load(entry);                                                       \
    }
QK_ENTRIES(qk_entries_16, int16_t)
QK_ENTRIES(qk_entries_32, int32_t)
#endif

/* What operators work on: rows of an operand from `row` on, n columns of each from `column` on. A row
 * has `pitch` lanes in a slot, and all have `lanes`. */
typedef struct {
    const qk_memory *m;
    int64_t outer, row, column, n, pitch, lanes;
    int32_t slots[QK_SLOTS * QK_BLOCK] __attribute__((aligned(64)));
} qk_slots;

static inline int32_t *qk_slot(qk_slots *s, int64_t number) { return s->slots + number * s->lanes; }

/* Functions, one for each operator and type: a small network takes as long as what stands in front of loops. */
#define QK_OPERATOR(name) static void name(const qk_op *op, qk_slots *s)
#define QK_OPERAND(memory, size) \
    (memory) + op->p0 + s->outer * op->p2 + s->row * op->p3 + (size) * s->column

/* All lanes; and row by row: i counts the columns, `row` lanes lie in front of the first one. */
#define QK_EACH(expression)                     \
    {                                           \
        int32_t *to = qk_slot(s, op->to);       \
        const int64_t lanes = s->lanes;         \
        for (int64_t i = 0; i < lanes; i += 16) \
            qk_store(to + i, expression);       \
    }
#define QK_EACH_COLUMN(expression)                        \
    {                                                     \
        int32_t *to = qk_slot(s, op->to);                 \
        const int64_t lanes = s->lanes, pitch = s->pitch; \
        for (int64_t row = 0; row < lanes; row += pitch)  \
            for (int64_t i = 0; i < pitch; i += 16)       \
                qk_store(to + row + i, expression);       \
    }

#define QK_LIMITS const qk_vec low = qk_all((int32_t)op->low), high = qk_all((int32_t)op->high);
#define QK_WITHIN(x) qk_max(qk_min(x, high), low)

/* Factors: one a column, or the same sixteen lanes. */
#define QK_FACTORS(type, place) ((const type *)(s->m->blob + (place)) + every * s->column)
#ifdef QK_REALS
#define QK_REAL_FACTORS(added)                                                 \
    const int64_t own = op->scaled == 2 ? 4 : 0;                               \
    const uint8_t *const factors = s->m->blob + op->factors + own * s->column; \
    const qk_vec less = qk_all((int32_t)(QK_REAL_BITS - (uint32_t)(added)));
#define QK_SCALED(x, i) qk_times(x, qk_load_real(factors + own * (i)), less)
#else
#define QK_REAL_FACTORS(added)
#define QK_SCALED(x, i) ((void)(i), (x))
#endif

#define QK_LOAD_ROWS(loaded, made)                                   \
    for (int64_t row = 0; row < lanes; row += pitch, from += step)   \
        for (int64_t i = 0; i < pitch; i += 16) {                    \
            const qk_vec x = loaded;                                 \
            qk_store(to + row + i, made);                            \
        }
#define QK_LOAD_OF(name, size, loaded)                                                               \
    QK_OPERATOR(name)                                                                                \
    {                                                                                                \
        const int64_t lanes = s->lanes, pitch = s->pitch;                                            \
        const uint8_t *from = QK_OPERAND(op->p1 & 16 ? s->m->blob : s->m->arena, size);              \
        int32_t *const to = qk_slot(s, op->to);                                                      \
        const qk_vec zero = qk_all((int32_t)op->b);                                                  \
        const int64_t step = op->p3, is_scaled = op->scaled;                                         \
        (void)zero;                                                                                  \
        if (!op->low && !is_scaled) {                                                               \
            QK_LOAD_ROWS(loaded, x)                                                                  \
            return;                                                                                  \
        }                                                                                            \
        QK_REAL_FACTORS(op->low ? 0 : op->high)                                                      \
        const int32_t *const with = qk_slot(s, op->high);                                            \
        if (!op->low)                                                                                \
            QK_LOAD_ROWS(loaded, QK_SCALED(x, i))                                                    \
        else if (op->low == QK_ADD)                                                                  \
            QK_LOAD_ROWS(loaded, qk_add(is_scaled ? QK_SCALED(x, i) : x, qk_load(with + row + i)))  \
        else                                                                                         \
            QK_LOAD_ROWS(loaded, qk_mul(is_scaled ? QK_SCALED(x, i) : x, qk_load(with + row + i)))  \
    }
QK_LOAD_OF(qk_load_bytes, 1, qk_sub(qk_load_u8(from + i), zero))
QK_LOAD_OF(qk_load_words, 2, qk_load_s16(from + 2 * i))
QK_LOAD_OF(qk_load_longs, 4, qk_load((const int32_t *)from + i))
#define QK_ONE_ELEMENT(type) (type == QK_U8 ? *from : type == QK_S16 ? *(const int16_t *)from : *(const int32_t *)from)
QK_LOAD_OF(qk_load_one, 0, qk_sub(qk_all(QK_ONE_ELEMENT((op->p1 & 15))), zero))

QK_OPERATOR(qk_op_load)
{
    const int64_t type = op->p1 & 15;
    (op->a ? qk_load_one : type == QK_U8 ? qk_load_bytes : type == QK_S16 ? qk_load_words : qk_load_longs)(op, s);
}

QK_OPERATOR(qk_op_constant)
{
    const int32_t *values = (const int32_t *)(s->m->blob + op->p0) + s->column;
    const qk_vec number = qk_all((int32_t)op->p0);
    if (op->a)
        QK_EACH(number)
    else
        QK_EACH_COLUMN(qk_load(values + i))
}

#define QK_BINARY(name, change)                                                        \
    QK_OPERATOR(name)                                                                  \
    {                                                                                  \
        const int32_t *const a = qk_slot(s, op->a), *const b = qk_slot(s, op->b);      \
        const qk_vec number = qk_all((int32_t)op->p0);                                 \
        if (op->p1)                                                                    \
            QK_EACH(change(qk_load(a + i), number))                                    \
        else                                                                           \
            QK_EACH(change(qk_load(a + i), qk_load(b + i)))                            \
    }
QK_BINARY(qk_op_add, qk_add)
QK_BINARY(qk_op_sub, qk_sub)
QK_BINARY(qk_op_mul, qk_mul)
QK_BINARY(qk_op_min, qk_min)
QK_BINARY(qk_op_max, qk_max)

QK_OPERATOR(qk_op_rescale)
{
    const int64_t every = op->p3 ? 1 : 0;
    const int32_t *const a = qk_slot(s, op->a), *mult = QK_FACTORS(int32_t, op->p0), *shift = QK_FACTORS(int32_t, op->p2);
    const int64_t *const add = QK_FACTORS(int64_t, op->p1);
    const int left = (int)op->b;
    if (!every) {
        const qk_factor f = qk_load_factor(mult, add, shift);
        QK_EACH(qk_scale(qk_shift_left(qk_load(a + i), left), &f))
        return;
    }
    int32_t *const to = qk_slot(s, op->to);
    for (int64_t i = 0; i < s->pitch; i += 16) {
        const qk_factor f = qk_load_factor(mult + i, add + i, shift + i);
        for (int64_t at = i; at < s->lanes; at += s->pitch)
            qk_store(to + at, qk_scale(qk_shift_left(qk_load(a + at), left), &f));
    }
}

QK_OPERATOR(qk_op_round_shift)
{
    const int64_t every = op->p3 ? 1 : 0;
    const int32_t *const a = qk_slot(s, op->a), *half = QK_FACTORS(int32_t, op->p0), *bits = QK_FACTORS(int32_t, op->p2);
    QK_EACH_COLUMN(qk_shift_right(qk_add(qk_load(a + row + i), qk_load(half + every * i)), qk_load(bits + every * i)))
}

QK_OPERATOR(qk_op_to_even)
{
    const int64_t every = op->p3 ? 1 : 0;
    const int32_t *const a = qk_slot(s, op->a), *below = QK_FACTORS(int32_t, op->p0);
    const int32_t *odd = QK_FACTORS(int32_t, op->p1), *bits = QK_FACTORS(int32_t, op->p2);
    QK_EACH_COLUMN(qk_to_even(qk_load(a + row + i), qk_load(below + every * i), qk_load(odd + every * i),
                              qk_load(bits + every * i)))
}

QK_OPERATOR(qk_op_clip)
{
    const int32_t *const a = qk_slot(s, op->a);
    const qk_vec low = qk_all((int32_t)op->p0), high = qk_all((int32_t)op->p1);
    QK_EACH(QK_WITHIN(qk_load(a + i)))
}

QK_OPERATOR(qk_op_left)
{
    const int32_t *const a = qk_slot(s, op->a);
    QK_EACH(qk_shift_left(qk_load(a + i), (int)op->p0))
}

QK_OPERATOR(qk_op_times)
{
    const int32_t *const a = qk_slot(s, op->a), *const b = qk_slot(s, op->b);
    QK_REAL_FACTORS(op->p0)
    QK_LIMITS
    if (op->p1)
        QK_EACH_COLUMN(QK_WITHIN(qk_add(QK_SCALED(qk_load(a + row + i), i), qk_load(b + row + i))))
    else
        QK_EACH_COLUMN(QK_WITHIN(QK_SCALED(qk_load(a + row + i), i)))
}

QK_OPERATOR(qk_op_table)
{
    const int32_t *const a = qk_slot(s, op->a), last = (int32_t)op->p1;
    const uint8_t *table = s->m->blob + op->p0;
    if (op->p2 == QK_S16)
        QK_EACH(qk_entries_16(table, a + i, last))
    else
        QK_EACH(qk_entries_32(table, a + i, last))
}

/* Bytes of four vectors are packed together: of one row, or of four rows of up to sixteen. */
#define QK_FOUR_OF(at, by, change, places, items)                                                            \
    qk_store_rows(places, 0, change(qk_load(at), i), change(qk_load(at + 16), i + by),                       \
                  change(qk_load(at + 32), i + 2 * by), change(qk_load(at + 48), i + 3 * by), bounds, items)
#define QK_ITEMS(change, items) QK_WITHIN(change(qk_load(a + row + i), i)), items
#define QK_STORE_ROWS(write, size, change)                                                                   \
    if (size == 1 && n <= 16)                                                                                \
        for (int64_t i = 0; row + 64 <= lanes; row += 64, out += 4 * op->p3) {                               \
            uint8_t *const four[4] = {out, out + op->p3, out + 2 * op->p3, out + 3 * op->p3};                \
            QK_FOUR_OF(a + row, 0, change, four, (int)n);                                                    \
        }                                                                                                    \
    for (int64_t i = 0; row < lanes; row += pitch, out += op->p3, i = 0) {                                   \
        for (; size == 1 && i + 64 <= n; i += 64) {                                                          \
            uint8_t *const four[4] = {out + i, out + i + 16, out + i + 32, out + i + 48};                    \
            QK_FOUR_OF(a + row + i, 16, change, four, 16);                                                   \
        }                                                                                                    \
        for (; i + 16 <= n; i += 16)                                                                         \
            write(out + size * i, QK_ITEMS(change, 16));                                                     \
        if (i < n)                                                                                           \
            write(out + size * i, QK_ITEMS(change, (int)(n - i)));                                           \
    }
#define QK_MOVED(x, i) ((void)(i), qk_add(x, added))
#define QK_STORE_OF(name, write, size)                                                          \
    QK_OPERATOR(name)                                                                           \
    {                                                                                           \
        const int32_t *const a = qk_slot(s, op->a);                                             \
        const int64_t n = s->n, lanes = s->lanes, pitch = s->pitch;                             \
        uint8_t *out = QK_OPERAND(s->m->arena, size);                                           \
        QK_LIMITS                                                                               \
        const qk_bounds bounds = qk_byte_bounds((int)op->low, (int)op->high); /* of bytes */    \
        int64_t row = 0;                                                                        \
        (void)bounds;                                                                           \
        if (op->scaled) {                                                                       \
            QK_REAL_FACTORS(op->b)                                                              \
            QK_STORE_ROWS(write, size, QK_SCALED)                                               \
        } else {                                                                                \
            const qk_vec added = qk_all((int32_t)op->b);                                        \
            QK_STORE_ROWS(write, size, QK_MOVED)                                                \
        }                                                                                       \
    }
QK_STORE_OF(qk_write_bytes, qk_store_u8, 1)
QK_STORE_OF(qk_write_words, qk_store_s16, 2)
QK_STORE_OF(qk_write_longs, qk_store_s32, 4)

QK_OPERATOR(qk_op_store)
{
    (op->p1 == QK_U8 ? qk_write_bytes : op->p1 == QK_S16 ? qk_write_words : qk_write_longs)(op, s);
}

/* Short rows are run together. */
static void qk_run_elementwise(const qk_elementwise_step *e, const qk_memory *m)
{
    static void (*const operators[QK_OPS])(const qk_op *, qk_slots *) = {
        [QK_LOAD] = qk_op_load, [QK_CONSTANT] = qk_op_constant, [QK_ADD] = qk_op_add, [QK_SUB] = qk_op_sub,
        [QK_MUL] = qk_op_mul, [QK_MIN] = qk_op_min, [QK_MAX] = qk_op_max, [QK_RESCALE] = qk_op_rescale,
        [QK_ROUND_SHIFT] = qk_op_round_shift, [QK_CLIP] = qk_op_clip, [QK_STORE] = qk_op_store,
        [QK_LEFT] = qk_op_left, [QK_TO_EVEN] = qk_op_to_even, [QK_TIMES] = qk_op_times, [QK_TABLE] = qk_op_table,
    };
    const qk_op *const program = (const qk_op *)(m->blob + e->program), *const end = program + e->count;
    const int64_t n = e->columns < QK_BLOCK ? e->columns : QK_BLOCK;
    const int64_t rows = e->d1 > 1 ? QK_BLOCK / ((n + 15) / 16 * 16) : 1;
    qk_slots s;
    s.m = m;
    for (s.outer = e->first_0; s.outer < e->d0; s.outer++)
        for (s.row = e->first_1; s.row < e->d1; s.row += rows)
            for (s.column = e->first_column; s.column < e->columns; s.column += n) {
                s.n = e->columns - s.column < n ? e->columns - s.column : n;
                s.pitch = (s.n + 15) / 16 * 16;
                s.lanes = (e->d1 - s.row < rows ? e->d1 - s.row : rows) * s.pitch;
                for (const qk_op *op = program; op < end; op++)
                    operators[op->op](op, &s);
            }
}
