/* Primitives of the integer engine in plain C99: see isa_vnni.h for what each one means.
 *
 * Loops of sixteen lanes, which compilers vectorise. Products are dot products of int16 along the
 * reduced axis (weights [column][k]): the one form that gcc turns into a pairwise multiply-add
 * without being told the instruction.
 */
#ifndef QK_ISA_H
#define QK_ISA_H

#include <stdint.h>
#include <string.h>

#define QK_NAME "generic"
#define QK_KU 2
#define QK_WIDEN 1
#define QK_ACT_SHIFT 0
#define QK_WEIGHT_BYTES 2
#define QK_LANES 1
#define QK_NV 1
#define QK_ROWS(nv) 6
#define QK_MAX_ROWS 6
#define QK_LANES_16 1    /* of a depthwise convolution: it fills no wider registers */
#define QK_OWN_TILES
#define QK_WEIGHT_PLACE(k, n, nv, steps) ((n) * (steps) * QK_KU + (k))

typedef struct {
    int32_t lane[16];
} qk_vec;
typedef int16_t qk_act;

#define QK_LANE for (int i = 0; i < 16; i++)

static inline qk_vec qk_load(const int32_t *p)
{
    qk_vec v;
    QK_LANE v.lane[i] = p[i];
    return v;
}
static inline void qk_store(int32_t *p, qk_vec v) { QK_LANE p[i] = v.lane[i]; }
static inline qk_vec qk_all(int32_t x)
{
    qk_vec v;
    QK_LANE v.lane[i] = x;
    return v;
}
/* Sums wrap like those of the other instruction sets. */
#define QK_WRAP(x, op, y) (int32_t)((uint32_t)(x)op(uint32_t)(y))
#define QK_BOTH(name, expression)                 \
    static inline qk_vec name(qk_vec a, qk_vec b) \
    {                                             \
        QK_LANE                                   \
        {                                         \
            const int32_t x = a.lane[i], y = b.lane[i]; \
            a.lane[i] = expression;               \
        }                                         \
        return a;                                 \
    }
QK_BOTH(qk_add, QK_WRAP(x, +, y))
QK_BOTH(qk_sub, QK_WRAP(x, -, y))
QK_BOTH(qk_mul, QK_WRAP(x, *, y))
QK_BOTH(qk_and, x & y)
QK_BOTH(qk_min, x < y ? x : y)
QK_BOTH(qk_max, x > y ? x : y)
QK_BOTH(qk_shift_right, x >> y)

static inline qk_vec qk_shift_left(qk_vec x, int bits)
{
    QK_LANE x.lane[i] = (int32_t)((uint32_t)x.lane[i] << bits);
    return x;
}
static inline void qk_widen(int16_t *to, const uint8_t *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = from[i];
}

/* Doubles hold the scaled sum exactly wherever the result is a byte, if no shift is above 44 bits:
 * 44 bits behind the point and 9 before it. Larger sums stay larger, and negative ones become at
 * most 0. Compilers vectorise this, but not the 64-bit product. */
#define QK_MOST_REAL_SHIFT 12

typedef struct {
    int64_t add[16];
    double scale[16], plus[16];
    int32_t mult[16], shift[16], is_real;
} qk_factor;

static inline qk_factor qk_load_factor(const int32_t *mult, const int64_t *add, const int32_t *shift)
{
    qk_factor f;
    memcpy(f.mult, mult, sizeof f.mult);
    memcpy(f.add, add, sizeof f.add);
    memcpy(f.shift, shift, sizeof f.shift);
    f.is_real = 1;
    QK_LANE
    {
        const int32_t bits = f.shift[i] > QK_MOST_REAL_SHIFT ? QK_MOST_REAL_SHIFT : f.shift[i];
        const double last = 1.0 / (double)((int64_t)1 << (32 + bits));
        f.is_real &= f.shift[i] <= QK_MOST_REAL_SHIFT;
        f.scale[i] = (double)f.mult[i] * last;
        f.plus[i] = (double)f.add[i] * last;
    }
    return f;
}
static inline qk_vec qk_scale(qk_vec x, const qk_factor *f)
{
    QK_LANE
    {
        const int64_t product = (int64_t)x.lane[i] * f->mult[i] + f->add[i];
        x.lane[i] = (int32_t)(product >> 32) >> f->shift[i];
    }
    return x;
}
static inline qk_vec qk_scale_bytes(qk_vec x, const qk_factor *f)
{
    if (!f->is_real)
        return qk_scale(x, f);
    QK_LANE x.lane[i] = (int32_t)((double)x.lane[i] * f->scale[i] + f->plus[i]);
    return x;
}
#define qk_scale_bytes qk_scale_bytes
static inline qk_vec qk_load_u8(const uint8_t *p)
{
    qk_vec v;
    QK_LANE v.lane[i] = p[i];
    return v;
}
static inline qk_vec qk_load_s16(const void *p)
{
    int16_t all[16];
    qk_vec v;
    memcpy(all, p, sizeof all);
    QK_LANE v.lane[i] = all[i];
    return v;
}
static inline void qk_store_u8(uint8_t *p, qk_vec v, int n)
{
    uint8_t all[16];
    QK_LANE all[i] = (uint8_t)v.lane[i];
    if (n == 16)
        memcpy(p, all, 16);
    else
        memcpy(p, all, (size_t)n);
}

/* Bounds of bytes, and four rows of sixteen values, saturated to bytes and clipped. */
typedef struct {
    int32_t low, high;
} qk_bounds;
static inline qk_bounds qk_byte_bounds(int low, int high)
{
    qk_bounds b = {low, high};
    return b;
}
static inline void qk_store_rows(uint8_t *const *out, int64_t offset, qk_vec x0, qk_vec x1, qk_vec x2, qk_vec x3,
                                 qk_bounds bounds, int n)
{
    const qk_vec low = qk_all(bounds.low), high = qk_all(bounds.high);
    qk_store_u8(out[0] + offset, qk_max(qk_min(x0, high), low), n);
    qk_store_u8(out[1] + offset, qk_max(qk_min(x1, high), low), n);
    qk_store_u8(out[2] + offset, qk_max(qk_min(x2, high), low), n);
    qk_store_u8(out[3] + offset, qk_max(qk_min(x3, high), low), n);
}
static inline void qk_store_s16(void *p, qk_vec v, int n)
{
    int16_t all[16];
    QK_LANE all[i] = (int16_t)v.lane[i];
    memcpy(p, all, 2 * (size_t)n);
}
#define QK_OWN_STORE_S32
static inline void qk_store_s32(void *p, qk_vec v, int n) { memcpy(p, v.lane, 4 * (size_t)n); }

/* Rows times sixteen columns of weights [column][k]; two rows and four columns at a time. */
#define QK_DOT(i, j) s##i##j += a##i[k] * w##j[k]
static void qk_own_tile(int64_t mr, const uint8_t *const *row, int64_t steps, const uint8_t *weight, const int32_t *bias,
                        int32_t *sums)
{
    const int64_t n = steps * QK_KU;
    const int16_t *w = (const int16_t *)weight;
    for (int64_t r = 0; r < mr; r += 2) {
        const int16_t *a0 = (const int16_t *)row[r], *a1 = (const int16_t *)row[r + 1 < mr ? r + 1 : r];
        for (int64_t c = 0; c < 16; c += 4) {
            const int16_t *w0 = w + c * n, *w1 = w0 + n, *w2 = w1 + n, *w3 = w2 + n;
            int32_t s00 = 0, s01 = 0, s02 = 0, s03 = 0, s10 = 0, s11 = 0, s12 = 0, s13 = 0;
            for (int64_t k = 0; k < n; k++) {
                QK_DOT(0, 0);
                QK_DOT(0, 1);
                QK_DOT(0, 2);
                QK_DOT(0, 3);
                QK_DOT(1, 0);
                QK_DOT(1, 1);
                QK_DOT(1, 2);
                QK_DOT(1, 3);
            }
            int32_t *to = sums + r * 16 + c, *next = sums + (r + 1 < mr ? r + 1 : r) * 16 + c;
            to[0] = bias[c] + s00;
            to[1] = bias[c + 1] + s01;
            to[2] = bias[c + 2] + s02;
            to[3] = bias[c + 3] + s03;
            next[0] = bias[c] + s10;
            next[1] = bias[c + 1] + s11;
            next[2] = bias[c + 2] + s12;
            next[3] = bias[c + 3] + s13;
        }
    }
}

/* Taps of a depthwise convolution: two lines of sixteen columns a step, one behind the other. */
static inline void qk_interleave(void *to, const uint8_t *const rows[2])
{
    uint8_t bytes[32];
    int16_t lines[32];
    memcpy(bytes, rows[0], 16);
    memcpy(bytes + 16, rows[1], 16);
    for (int i = 0; i < 32; i++)
        lines[i] = bytes[i];
    memcpy(to, lines, sizeof lines);
}
static inline void qk_interleave_pairs(void *to, const uint8_t *const *rows)
{
    memcpy(to, rows[0], 32);
    memcpy((uint8_t *)to + 32, rows[1], 32);
}
static void qk_own_taps(const uint8_t *mixed, int64_t step, int64_t width, int64_t runs, int64_t run_bytes,
                        int64_t count, const uint8_t *weight, const int32_t *bias, int32_t *sums)
{
    for (int64_t p = 0; p < width; p++) {
        const int16_t *w = (const int16_t *)weight;
        int32_t total[16];
        memcpy(total, bias, sizeof total);
        for (int64_t run = 0; run < runs; run++) {
            const int16_t *x = (const int16_t *)(mixed + p * step + run * run_bytes);
            for (int64_t t = 0; t < count; t++, x += 32, w += 32)
                QK_LANE total[i] += x[i] * w[i] + x[16 + i] * w[16 + i];
        }
        memcpy(sums + 16 * p, total, sizeof total);
    }
}
#endif
