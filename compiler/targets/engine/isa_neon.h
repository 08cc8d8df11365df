/* Primitives of the integer engine for NEON with the dot product extension: see isa_vnni.h.
 *
 * sdot multiplies signed by signed bytes, so a dot step takes 128 from every stored byte; usdot of the i8mm extension
 * takes them as they are.
 */
#ifndef QK_ISA_H
#define QK_ISA_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#ifdef QK_I8MM /* products of rows are those of isa_i8mm.h */
#define QK_NAME "i8mm"
#define QK_ACT_SHIFT 0
#define QK_TILE_STEPS 2
#else
#define QK_NAME "neon"
#define QK_ACT_SHIFT 128
#endif
#define QK_KU 4
#define QK_WIDEN 0
#define QK_WEIGHT_BYTES 1
#define QK_LANES 1 /* addends in the order of the lanes */
#define QK_NV 1
#define QK_ROWS(nv) 6
#define QK_MAX_ROWS 6
#define QK_REALS 1
#define QK_LANES_16 1    /* of a depthwise convolution: it fills no wider registers */
#define QK_PAIR_PIXELS 2 /* of a depthwise convolution, two output rows together */
#define QK_FOUR_PIXELS 1 /* three or four output rows together */

typedef struct {
    int32x4_t a, b, c, d;
} qk_vec;
typedef struct {
    int8x16_t a, b, c, d;
} qk_weight;
typedef int8x16_t qk_spread;
typedef uint8_t qk_act;

static inline qk_vec qk_load(const int32_t *p)
{
    qk_vec v = {vld1q_s32(p), vld1q_s32(p + 4), vld1q_s32(p + 8), vld1q_s32(p + 12)};
    return v;
}
static inline void qk_store(int32_t *p, qk_vec v)
{
    vst1q_s32(p, v.a);
    vst1q_s32(p + 4, v.b);
    vst1q_s32(p + 8, v.c);
    vst1q_s32(p + 12, v.d);
}
static inline qk_vec qk_all(int32_t x)
{
    qk_vec v = {vdupq_n_s32(x), vdupq_n_s32(x), vdupq_n_s32(x), vdupq_n_s32(x)};
    return v;
}
#define QK_FOUR(name, op)                                                          \
    static inline qk_vec name(qk_vec x, qk_vec y)                                  \
    {                                                                              \
        qk_vec v = {op(x.a, y.a), op(x.b, y.b), op(x.c, y.c), op(x.d, y.d)};       \
        return v;                                                                  \
    }
#define QK_RIGHT(x, bits) vshlq_s32(x, vnegq_s32(bits))
QK_FOUR(qk_add, vaddq_s32)
QK_FOUR(qk_sub, vsubq_s32)
QK_FOUR(qk_mul, vmulq_s32)
QK_FOUR(qk_min, vminq_s32)
QK_FOUR(qk_max, vmaxq_s32)
QK_FOUR(qk_and, vandq_s32)
QK_FOUR(qk_shift_right, QK_RIGHT)
#undef QK_FOUR

static inline qk_vec qk_shift_left(qk_vec x, int bits)
{
    const int32x4_t n = vdupq_n_s32(bits);
    qk_vec v = {vshlq_s32(x.a, n), vshlq_s32(x.b, n), vshlq_s32(x.c, n), vshlq_s32(x.d, n)};
    return v;
}

static inline qk_weight qk_load_weight(const void *p)
{
    const int8_t *q = (const int8_t *)p;
    qk_weight w = {vld1q_s8(q), vld1q_s8(q + 16), vld1q_s8(q + 32), vld1q_s8(q + 48)};
    return w;
}
#ifdef QK_I8MM
static inline int8x16_t qk_signed(uint8x16_t bytes) { return vreinterpretq_s8_u8(bytes); }
static inline int32x4_t qk_dot4(int32x4_t acc, int8x16_t w, int8x16_t x)
{
    return vusdotq_s32(acc, vreinterpretq_u8_s8(x), w);
}
#else
static inline int8x16_t qk_signed(uint8x16_t bytes)
{
    return vreinterpretq_s8_u8(veorq_u8(bytes, vdupq_n_u8(128)));
}
#define qk_dot4 vdotq_s32
#endif
static inline qk_spread qk_spread4(const void *p)
{
    uint32_t four;
    memcpy(&four, p, 4);
    return qk_signed(vreinterpretq_u8_u32(vdupq_n_u32(four)));
}
/* The same of two int16: weights of the first one of sixteen columns, then those of the second one. */
#define QK_PAIRS 1
static inline qk_weight qk_load_weight_pairs(const void *p)
{
    const int8x16x2_t two = vld2q_s8((const int8_t *)p);
    qk_weight w = {vreinterpretq_s8_s16(vmovl_s8(vget_low_s8(two.val[0]))),
                   vreinterpretq_s8_s16(vmovl_high_s8(two.val[0])),
                   vreinterpretq_s8_s16(vmovl_s8(vget_low_s8(two.val[1]))),
                   vreinterpretq_s8_s16(vmovl_high_s8(two.val[1]))};
    return w;
}
static inline qk_spread qk_spread_pair(const void *p)
{
    uint32_t pair;
    memcpy(&pair, p, 4);
    return vreinterpretq_s8_u32(vdupq_n_u32(pair));
}
static inline qk_vec qk_dot_spread_pair(qk_vec acc, qk_spread x, qk_weight w)
{
    const int16x4_t two = vget_low_s16(vreinterpretq_s16_s8(x));
    const int16x8_t a = vreinterpretq_s16_s8(w.a), b = vreinterpretq_s16_s8(w.b);
    const int16x8_t c = vreinterpretq_s16_s8(w.c), d = vreinterpretq_s16_s8(w.d);
    acc.a = vmlal_lane_s16(vmlal_lane_s16(acc.a, vget_low_s16(a), two, 0), vget_low_s16(c), two, 1);
    acc.b = vmlal_high_lane_s16(vmlal_high_lane_s16(acc.b, a, two, 0), c, two, 1);
    acc.c = vmlal_lane_s16(vmlal_lane_s16(acc.c, vget_low_s16(b), two, 0), vget_low_s16(d), two, 1);
    acc.d = vmlal_high_lane_s16(vmlal_high_lane_s16(acc.d, b, two, 0), d, two, 1);
    return acc;
}

static inline qk_vec qk_dot(qk_vec acc, qk_spread x, qk_weight w)
{
    acc.a = qk_dot4(acc.a, w.a, x);
    acc.b = qk_dot4(acc.b, w.b, x);
    acc.c = qk_dot4(acc.c, w.c, x);
    acc.d = qk_dot4(acc.d, w.d, x);
    return acc;
}

static inline qk_weight qk_load_taps(const void *p) { return qk_load_weight(p); }
static inline qk_vec qk_dot_taps(qk_vec acc, qk_weight x, qk_weight w)
{
    acc.a = qk_dot4(acc.a, w.a, x.a);
    acc.b = qk_dot4(acc.b, w.b, x.b);
    acc.c = qk_dot4(acc.c, w.c, x.c);
    acc.d = qk_dot4(acc.d, w.d, x.d);
    return acc;
}
#define QK_DOT_TAPS qk_dot_taps
#define QK_TAPS qk_weight

/* Sixteen columns of four rows of bytes, the rows of a column side by side; already signed. */
static inline void qk_interleave(void *to, const uint8_t *const rows[4])
{
    int8x16x4_t v;
    for (int i = 0; i < 4; i++)
        v.val[i] = qk_signed(vld1q_u8(rows[i]));
    vst4q_s8((int8_t *)to, v);
}

/* Two int16 of every channel, their products by two int16 weights. */
static inline int32x4_t qk_dot_pairs4(int32x4_t acc, int8x16_t x, int8x16_t w)
{
    const int16x8_t a = vreinterpretq_s16_s8(x), b = vreinterpretq_s16_s8(w);
    return vaddq_s32(acc, vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b)));
}
static inline qk_vec qk_dot_pairs(qk_vec acc, qk_weight x, qk_weight w)
{
    acc.a = qk_dot_pairs4(acc.a, x.a, w.a);
    acc.b = qk_dot_pairs4(acc.b, x.b, w.b);
    acc.c = qk_dot_pairs4(acc.c, x.c, w.c);
    acc.d = qk_dot_pairs4(acc.d, x.d, w.d);
    return acc;
}
static inline void qk_interleave_pairs(void *to, const uint8_t *const *rows)
{
    for (int i = 0; i < 2; i++) {
        const int16x8x2_t v = {{vreinterpretq_s16_u8(vld1q_u8(rows[0] + 16 * i)),
                                vreinterpretq_s16_u8(vld1q_u8(rows[1] + 16 * i))}};
        vst2q_s16((int16_t *)to + 16 * i, v);
    }
}

typedef struct {
    qk_vec mult, shift;
    int64x2_t add[8];
} qk_factor;

static inline qk_factor qk_load_factor(const int32_t *mult, const int64_t *add, const int32_t *shift)
{
    qk_factor f;
    f.mult = qk_load(mult);
    f.shift = qk_load(shift);
    for (int i = 0; i < 8; i++)
        f.add[i] = vld1q_s64(add + 2 * i);
    return f;
}
static inline int32x4_t qk_scale4(int32x4_t x, int32x4_t mult, int64x2_t low, int64x2_t high, int32x4_t shift)
{
    int64x2_t first = vmlal_s32(low, vget_low_s32(x), vget_low_s32(mult));
    int64x2_t second = vmlal_high_s32(high, x, mult);
    int32x4_t top = vuzp2q_s32(vreinterpretq_s32_s64(first), vreinterpretq_s32_s64(second));
    return QK_RIGHT(top, shift);
}
static inline qk_vec qk_scale(qk_vec x, const qk_factor *f)
{
    qk_vec v = {
        qk_scale4(x.a, f->mult.a, f->add[0], f->add[1], f->shift.a),
        qk_scale4(x.b, f->mult.b, f->add[2], f->add[3], f->shift.b),
        qk_scale4(x.c, f->mult.c, f->add[4], f->add[5], f->shift.c),
        qk_scale4(x.d, f->mult.d, f->add[6], f->add[7], f->shift.d),
    };
    return v;
}

typedef struct {
    float32x4_t a, b, c, d;
} qk_real;
static inline qk_real qk_load_real(const void *p)
{
    const float *q = (const float *)p;
    qk_real f = {vld1q_f32(q), vld1q_f32(q + 4), vld1q_f32(q + 8), vld1q_f32(q + 12)};
    return f;
}
static inline int32x4_t qk_times4(int32x4_t x, float32x4_t factor, int32x4_t less)
{
    const float32x4_t sum = vfmaq_f32(vdupq_n_f32(QK_REAL_ONE), vcvtq_f32_s32(x), factor);
    return vsubq_s32(vreinterpretq_s32_f32(sum), less);
}
static inline qk_vec qk_times(qk_vec x, qk_real f, qk_vec less)
{
    qk_vec v = {qk_times4(x.a, f.a, less.a), qk_times4(x.b, f.b, less.b), qk_times4(x.c, f.c, less.c),
                qk_times4(x.d, f.d, less.d)};
    return v;
}

static inline qk_vec qk_load_u8(const uint8_t *p)
{
    const uint8x16_t x = vld1q_u8(p);
    const uint16x8_t low = vmovl_u8(vget_low_u8(x)), high = vmovl_high_u8(x);
    qk_vec v = {
        vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))),
        vreinterpretq_s32_u32(vmovl_high_u16(low)),
        vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))),
        vreinterpretq_s32_u32(vmovl_high_u16(high)),
    };
    return v;
}
static inline qk_vec qk_load_s16(const void *p)
{
    const int16_t *q = (const int16_t *)p;
    const int16x8_t low = vld1q_s16(q), high = vld1q_s16(q + 8);
    qk_vec v = {vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)),
                vmovl_high_s16(high)};
    return v;
}

static inline uint8x16_t qk_pack(qk_vec v)
{
    const int16x8_t low = vcombine_s16(vqmovn_s32(v.a), vqmovn_s32(v.b));
    const int16x8_t high = vcombine_s16(vqmovn_s32(v.c), vqmovn_s32(v.d));
    return vcombine_u8(vqmovun_s16(low), vqmovun_s16(high));
}
static inline void qk_store_part(uint8_t *p, uint8x16_t bytes, int n)
{
    if (n == 16) {
        vst1q_u8(p, bytes);
    } else {
        uint8_t all[16];
        vst1q_u8(all, bytes);
        memcpy(p, all, (size_t)n);
    }
}
static inline void qk_store_u8(uint8_t *p, qk_vec v, int n) { qk_store_part(p, qk_pack(v), n); }

/* Bounds of bytes, and four rows of sixteen values, saturated to bytes and clipped. */
typedef struct {
    uint8x16_t low, high;
} qk_bounds;
static inline qk_bounds qk_byte_bounds(int low, int high)
{
    qk_bounds b = {vdupq_n_u8((uint8_t)low), vdupq_n_u8((uint8_t)high)};
    return b;
}
static inline void qk_store_rows(uint8_t *const *out, int64_t offset, qk_vec x0, qk_vec x1, qk_vec x2, qk_vec x3,
                                 qk_bounds b, int n)
{
    qk_store_part(out[0] + offset, vminq_u8(vmaxq_u8(qk_pack(x0), b.low), b.high), n);
    qk_store_part(out[1] + offset, vminq_u8(vmaxq_u8(qk_pack(x1), b.low), b.high), n);
    qk_store_part(out[2] + offset, vminq_u8(vmaxq_u8(qk_pack(x2), b.low), b.high), n);
    qk_store_part(out[3] + offset, vminq_u8(vmaxq_u8(qk_pack(x3), b.low), b.high), n);
}
#define QK_PACKED 1
#define QK_HOLD_VECTOR(x) __asm__("" : "+w"((x).a), "+w"((x).b), "+w"((x).c), "+w"((x).d))
static inline __attribute__((always_inline)) void qk_store_bytes(
    const int nv, uint8_t *p0, uint8_t *p1, uint8_t *p2, uint8_t *p3, qk_vec x0, qk_vec x1, qk_vec x2, qk_vec x3,
    qk_bounds b)
{
    vst1q_u8(p0, vminq_u8(vmaxq_u8(qk_pack(x0), b.low), b.high));
    (void)nv, (void)p1, (void)p2, (void)p3, (void)x1, (void)x2, (void)x3;
}
static inline void qk_store_s16(void *p, qk_vec v, int n)
{
    int16_t all[16];
    vst1q_s16(all, vcombine_s16(vqmovn_s32(v.a), vqmovn_s32(v.b)));
    vst1q_s16(all + 8, vcombine_s16(vqmovn_s32(v.c), vqmovn_s32(v.d)));
    memcpy(p, all, 2 * (size_t)n);
}

/* out[i] = table[in[i]], 64 entries at a time. */
#define QK_LOOKUP_BYTES
static inline void qk_lookup_bytes(uint8_t *out, const uint8_t *in, const uint8_t *table, int64_t n)
{
    const uint8x16x4_t a = vld1q_u8_x4(table), b = vld1q_u8_x4(table + 64);
    const uint8x16x4_t c = vld1q_u8_x4(table + 128), d = vld1q_u8_x4(table + 192);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const uint8x16_t x = vld1q_u8(in + i);
        uint8x16_t v = vqtbl4q_u8(a, x);
        v = vqtbx4q_u8(v, b, vsubq_u8(x, vdupq_n_u8(64)));
        v = vqtbx4q_u8(v, c, vsubq_u8(x, vdupq_n_u8(128)));
        vst1q_u8(out + i, vqtbx4q_u8(v, d, vsubq_u8(x, vdupq_n_u8(192))));
    }
    for (; i < n; i++)
        out[i] = table[in[i]];
}
#endif
