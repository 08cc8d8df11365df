/* The kernels of the integer engine: a step table is checked and run. C99 with GNU inline.
 *
 * One of QK_AMX, QK_VNNI, QK_AVXVNNI, QK_AVX2, QK_I8MM, QK_NEON, QK_GENERIC chooses the primitives. A run allocates nothing and
 * keeps nothing: everything lies in the arena of the caller, so runs may go on at the same time.
 */
#include "step.h"

#if defined(QK_AMX)
#include "isa_amx.h"
#elif defined(QK_VNNI)
#include "isa_vnni.h"
#elif defined(QK_AVX2) || defined(QK_AVXVNNI)
#include "isa_avx2.h"
#elif defined(QK_NEON) || defined(QK_I8MM)
#include "isa_neon.h"
#else
#include "isa_generic.h"
#endif

#include <time.h>

#include "gemm.h"
#ifdef QK_AMX
#include "tiled.h"
#endif

#include "depthwise.h"
#include "elementwise.h"
#include "general.h"
#include "moves.h"
#include "rows.h"
#include "share.h"

#define QK_EXPORT __attribute__((visibility("default")))

/* What planning must know: k unit, weight bytes, lanes of addends, widest panel, activation shift,
 * widened, columns innermost, kernels for narrow weights, float32 factors, last vectors of eight, lines,
 * weights from which products of one row take those of 4 bits.
 * Returns the name. */
QK_EXPORT const char *qk_isa(int64_t *facts)
{
    facts[0] = QK_KU;
    facts[1] = QK_WEIGHT_BYTES;
    facts[2] = QK_LANES;
    facts[3] = QK_NV;
    facts[4] = QK_ACT_SHIFT;
    facts[5] = QK_WIDEN;
    facts[6] = facts[8] = facts[9] = facts[10] = 0;
#ifdef QK_OWN_TILES
    facts[6] = 1;
#endif
    facts[7] = QK_NARROW;
#ifdef QK_REALS
    facts[8] = 1;
#endif
#ifdef QK_EIGHTS
    facts[9] = 1;
#endif
#ifdef QK_LINES
    facts[10] = qk_has_lines;
#endif
    facts[11] = QK_NIBBLES;
    return QK_NAME;
}

QK_EXPORT int64_t qk_most_in_tile(void) { return QK_TILE_STEPS; }

/* ---- checks: every address that a step can reach lies within its memory ------------------------ */

typedef struct {
    int64_t arena, blob, inputs, outputs;
    const int64_t *input_bytes, *output_bytes;
    const uint8_t *constants;
} qk_limits;

#define QK_MOST ((int64_t)1 << 31)

static int qk_within(int64_t limit, int64_t start, int64_t bytes, int dims, const int64_t *sizes,
                     const int64_t *strides)
{
    int64_t last = bytes;
    if (start < 0 || start > limit || bytes < 0 || bytes > limit)
        return 0;
    for (int i = 0; i < dims; i++) {
        if (sizes[i] < 1 || sizes[i] >= QK_MOST || strides[i] < 0 || strides[i] >= QK_MOST)
            return 0;
        if (sizes[i] > 1 && strides[i] > (limit - last) / (sizes[i] - 1))
            return 0;
        last += (sizes[i] - 1) * strides[i];
    }
    return last <= limit - start;
}

static int qk_span(int64_t limit, int64_t start, int64_t bytes)
{
    return qk_within(limit, start, bytes, 0, 0, 0);
}

static int qk_span2(int64_t limit, int64_t start, int64_t bytes, int64_t n0, int64_t s0, int64_t n1, int64_t s1)
{
    const int64_t sizes[2] = {n0, n1}, strides[2] = {s0, s1};
    return qk_within(limit, start, bytes, 2, sizes, strides);
}

static int qk_small(int64_t x) { return x >= 1 && x < ((int64_t)1 << 24); }

static int qk_check_requantize(const qk_requantize *q, const qk_limits *l, int64_t channels)
{
    if (q->type < QK_U8 || q->type > QK_S32 || q->left < 0 || q->left > 31)
        return 0;
    if (q->by_channel && (q->type == QK_U8 || !qk_span(l->blob, q->low, 4 * channels) ||
                          !qk_span(l->blob, q->high, 4 * channels)))
        return 0;
    if (q->kind == QK_PLAIN)
        return 1;
#ifdef QK_REALS
    if (q->kind == QK_REAL)
        return qk_span(l->blob, q->mult, 4 * channels);
#endif
    return q->kind > QK_PLAIN && q->kind <= QK_EVEN && qk_span(l->blob, q->mult, 4 * channels) &&
           qk_span(l->blob, q->shift, 4 * channels) &&
           (q->kind == QK_SHIFT || qk_span(l->blob, q->add, (q->kind == QK_FACTOR ? 8 : 4) * channels));
}

/* Of constant weights, one run of bytes in each group. */
static int qk_is_row_of_four_bits(const qk_gemm_step *g)
{
    return QK_NIBBLES && g->height * g->width == 1 && g->seg_y * g->seg_x == 1 && !g->weight_in_arena && !g->bias_in_arena;
}

#ifdef QK_AMX
static int qk_check_tiles(const qk_gemm_step *g, const qk_limits *l)
{
    if (g->tile > QK_TILE_STEPS || g->narrow || g->crossed || g->rows_by < QK_BY_RUN || g->rows_by > QK_BY_COPY ||
        g->block < 1 || g->block > QK_TILE_BLOCK || (g->type == QK_S16 && g->rows_by != QK_BY_COPY))
        return 0;
    /* A copy reads whole tiles, the last one as well. */
    const int64_t last = 4 * (qk_steps(g) - g->tile) + QK_TILE_ROW;
    if ((last - g->seg_items) * qk_size_of(g->type) > QK_SLACK)
        return 0;
    if (g->rows_by == QK_BY_RUN && g->height > 1 &&
        (g->in_pixel < 1 || g->in_row % g->in_pixel || qk_line_pitch(g) < g->width))
        return 0;
    return qk_span(l->arena, g->scratch, qk_bytes_of_copies(g)) && g->scratch % 64 == 0;
}
#else
#define qk_check_tiles(g, l) (!(g)->narrow && !(g)->crossed && (g)->type == QK_U8 && (g)->tile == QK_TILE_STEPS)
#endif

static int qk_check_gemm(const qk_gemm_step *g, const qk_limits *l)
{
    if (!qk_small(g->height) || !qk_small(g->width) || !qk_small(g->groups) || !qk_small(g->columns) ||
        !qk_small(g->seg_y) || !qk_small(g->seg_x) || !qk_small(g->seg_items) ||
        g->seg_y * g->seg_x > QK_MAX_SEGMENTS || g->tile < 0 || g->tile > QK_TILE_STEPS || g->narrow < 0 || g->narrow > QK_BYTES_OF_ROW ||
        (g->narrow == QK_NARROW_PAIRS && !QK_NARROW) || g->wide < 0 || g->wide > qk_steps(g) ||
        (g->wide && (g->narrow != QK_NARROW_PAIRS || g->seg_y * g->seg_x > 1)) ||
        (g->narrow == QK_BYTES_OF_ROW && (!QK_NARROW || g->height * g->width > 1)) || (g->narrow == QK_FOUR_BITS && !qk_is_row_of_four_bits(g)) ||
        (g->type != QK_U8 && (g->type != QK_S16 || g->narrow)) || g->crossed < 0 || g->crossed > QK_CROSSES ||
        (g->crossed && (g->type != QK_U8 || g->narrow || g->weight_in_arena || g->seg_y * g->seg_x > 1)))
        return 0;
    if (g->tile && !qk_check_tiles(g, l))
        return 0;
    const int64_t steps = qk_steps(g) * g->seg_y * g->seg_x;
    const int64_t rows = g->height * g->width, vectors = (g->columns + 15) / 16;
    const int64_t in_sizes[5] = {g->groups, g->height, g->width, g->seg_y, g->seg_x};
    const int64_t in_strides[5] = {g->in_group, g->in_row, g->in_pixel, g->seg_row, g->seg_pixel};
    const int64_t out_sizes[3] = {g->groups, g->height, g->width};
    const int64_t out_strides[3] = {g->out_group, g->out_row, g->out_pixel};
    if (!qk_within(l->arena, g->source, g->seg_items * qk_size_of(g->type), 5, in_sizes, in_strides) ||
        !qk_within(l->arena, g->out, g->columns * qk_size_of(g->rq.type), 3, out_sizes, out_strides))
        return 0;
    const int64_t bytes = vectors * qk_weight_bytes(g, steps) - (qk_ends_in_eight(g) ? 32 * steps : 0);
    if (g->weight_group < bytes && g->groups > 1)
        return 0;
    if (!qk_span2(g->weight_in_arena ? l->arena : l->blob, g->weight, bytes, g->groups, g->weight_group, 1, 0) ||
        !qk_span(g->bias_in_arena ? l->arena : l->blob, g->bias, g->groups * vectors * 64) ||
        g->bias % 4 || g->weight % 4)
        return 0;
#if QK_WIDEN
    if (qk_copies(g) && (!qk_span(l->arena, g->scratch, qk_block_rows(rows, steps + g->crossed) * (steps + g->crossed) * QK_KU * (int64_t)sizeof(qk_act) + 64) ||
        g->scratch % 64))
        return 0;
#else
    (void)rows;
#endif
    return qk_check_requantize(&g->rq, l, g->groups * vectors * 16);
}

static int qk_check_depthwise(const qk_depthwise_step *d, const qk_limits *l)
{
    if (!qk_small(d->height) || !qk_small(d->width) || !qk_small(d->channels) || !qk_small(d->kernel_y) ||
        !qk_small(d->kernel_x) || !qk_small(d->stride_y) || !qk_small(d->stride_x) ||
        !qk_small(d->dilation_y) || !qk_small(d->dilation_x) || d->together < 1 || d->together > QK_TOGETHER ||
        d->together > d->height || (d->together > 1 && d->dilation_y > 1) ||
        (d->type != QK_U8 && d->type != QK_S16) || !qk_has_block(d))
        return 0;
    const int64_t groups = qk_line_groups(d), vectors = qk_depthwise_places(d) / 16;
    const int64_t columns = (d->width - 1) * d->stride_x + (d->kernel_x - 1) * d->dilation_x + 1;
    const int64_t lines = (d->height - 1) * d->stride_y + (d->kernel_y - 1) * d->dilation_y + 1;
    return qk_span2(l->arena, d->source, d->channels * qk_size_of(d->type), lines, d->in_row, columns, d->in_pixel) &&
           qk_span2(l->arena, d->out, d->channels * qk_size_of(d->rq.type), d->height, d->out_row, d->width,
                    d->out_pixel) &&
           qk_span2(l->blob, d->weight, 64 * d->together, vectors * d->kernel_x, groups * 64 * d->together, groups,
                    64 * d->together) &&
           qk_span(l->blob, d->bias, vectors * 64) && d->bias % 4 == 0 &&
           qk_span2(l->arena, d->scratch, 64 * d->block, qk_mixed_columns(d), groups * 64 * d->block, groups,
                    64 * d->block) &&
           qk_check_requantize(&d->rq, l, vectors * 16);
}

#ifdef QK_REALS
#define QK_MOST_SCALED 2
#else
#define QK_MOST_SCALED 0
#endif

static int qk_check_elementwise(const qk_elementwise_step *e, const qk_limits *l)
{
    if (!qk_small(e->d0) || !qk_small(e->d1) || e->columns < 1 || e->columns >= QK_MOST || e->first_0 ||
        e->first_1 || e->first_column || e->count < 1 || e->count > 64 || e->program % 8 ||
        !qk_span(l->blob, e->program, e->count * (int64_t)sizeof(qk_op)))
        return 0;
    const qk_op *op = (const qk_op *)(l->constants + e->program);
    const int64_t padded = (e->columns + 15) / 16 * 16;
    for (int64_t i = 0; i < e->count; i++, op++) {
        if (op->op < 0 || op->op >= QK_OPS || op->to < 0 || op->to >= QK_SLOTS)
            return 0;
        if (op->scaled < 0 || op->scaled > QK_MOST_SCALED ||
            (op->scaled && !qk_span(l->blob, op->factors, 4 * (op->scaled == 2 ? padded : 16))) ||
            (op->op == QK_TIMES && !op->scaled) ||
            (op->op == QK_LOAD && op->low && (op->high < 0 || op->high >= QK_SLOTS)))
            return 0;
        if (op->op == QK_LOAD || op->op == QK_STORE) {
            const int64_t type = op->p1 & 15, limit = op->p1 & 16 ? l->blob : l->arena;
            const int64_t n = op->op == QK_LOAD && op->a ? 1 : e->columns;
            if (type > QK_S32 || (op->p1 & ~(int64_t)31) || (op->op == QK_STORE && op->p1 > QK_S32) ||
                !qk_span2(limit, op->p0, n * qk_size_of(type), e->d0, op->p2, e->d1, op->p3))
                return 0;
        }
        if (op->op == QK_CONSTANT) {
            if (!op->a && !qk_span(l->blob, op->p0, 4 * padded))
                return 0;
        } else if (op->op != QK_LOAD && (op->a < 0 || op->a >= QK_SLOTS)) {
            return 0;
        }
        if (((op->op >= QK_ADD && op->op <= QK_MAX) || op->op == QK_TIMES) && (op->b < 0 || op->b >= QK_SLOTS))
            return 0;
        const int64_t lanes = op->p3 ? padded : 16;
        if ((op->op == QK_RESCALE &&
             (!qk_span(l->blob, op->p0, 4 * lanes) || !qk_span(l->blob, op->p1, 8 * lanes) ||
              !qk_span(l->blob, op->p2, 4 * lanes) || op->b < 0 || op->b > 31)) ||
            (op->op == QK_ROUND_SHIFT &&
             (!qk_span(l->blob, op->p0, 4 * lanes) || !qk_span(l->blob, op->p2, 4 * lanes))) ||
            (op->op == QK_TO_EVEN &&
             (!qk_span(l->blob, op->p0, 4 * lanes) || !qk_span(l->blob, op->p1, 4 * lanes) ||
              !qk_span(l->blob, op->p2, 4 * lanes))) ||
            (op->op == QK_LEFT && (op->p0 < 0 || op->p0 > 31)) ||
            (op->op == QK_TABLE &&
             ((op->p2 != QK_S16 && op->p2 != QK_S32) || op->p1 < 0 || op->p1 > UINT16_MAX || (op->p1 & (op->p1 + 1)) ||
              !qk_span(l->blob, op->p0, (op->p1 + 1) * qk_size_of(op->p2)))))
            return 0;
    }
    return 1;
}

static int qk_check_pool(const qk_pool_step *p, const qk_limits *l)
{
    const int64_t size = qk_size_of(p->type), out = p->how == QK_POOL_MAX ? size : 4;
    return (p->how == QK_POOL_MAX || p->how == QK_POOL_AVERAGE) && p->type >= QK_U8 && p->type <= QK_S32 &&
           qk_small(p->height) && qk_small(p->width) && qk_small(p->channels) && qk_small(p->kernel_y) &&
           qk_small(p->kernel_x) && qk_small(p->stride_y) && qk_small(p->stride_x) && qk_small(p->dilation_y) &&
           qk_small(p->dilation_x) && qk_small(p->top + 1) && qk_small(p->left + 1) && p->count >= 0 &&
           p->factor < QK_MOST && p->factor > -QK_MOST &&
           qk_span2(l->arena, p->source, p->channels * size, p->in_height, p->in_row, p->in_width, p->in_pixel) &&
           qk_span2(l->arena, p->out, p->channels * out, p->height, p->out_row, p->width, p->out_pixel);
}

static int qk_check_wide(const qk_wide_step *w, const qk_limits *l)
{
    if (w->count < 1 || w->count > 256 || w->program % 8 ||
        !qk_span(l->blob, w->program, w->count * (int64_t)sizeof(qk_wide_op)))
        return 0;
    for (int d = 0; d < QK_DIMS; d++)
        if (w->size[d] < 1 || w->size[d] >= QK_MOST)
            return 0;
    const qk_wide_op *op = (const qk_wide_op *)(l->constants + w->program);
    for (int64_t i = 0; i < w->count; i++, op++) {
        if (op->op < 0 || op->op >= QK_WIDE_OPS || op->to < 0 || op->to >= QK_WIDE_SLOTS || op->a < 0 ||
            op->a >= QK_WIDE_SLOTS || op->b < 0 || op->b >= QK_WIDE_SLOTS || op->c < 0 || op->c >= QK_WIDE_SLOTS)
            return 0;
        const int64_t most = op->op == QK_WIDE_TO_INT ? 63 + op->p1 : 64;
        if ((op->op == QK_WIDE_WRAP || op->op == QK_WIDE_TO_INT) &&
            (op->p0 < 1 || op->p0 > most || op->p1 < 0 || op->p1 > 1))
            return 0;
        if (op->op > QK_WIDE_STORE)
            continue;
        const int64_t type = op->p1 & 15, in_blob = op->p1 & 16;
        if (type > QK_S64 || (op->p1 & ~(int64_t)31) || (in_blob && op->op == QK_WIDE_STORE) ||
            !qk_within(in_blob ? l->blob : l->arena, op->p0, qk_size_of(type), QK_DIMS, w->size, op->stride))
            return 0;
    }
    return 1;
}

static int qk_check_reduce(const qk_reduce_step *r, const qk_limits *l)
{
    const int64_t types[2] = {r->type, r->other_type}, places[2] = {r->source, r->other};
    for (int i = 0; i < (r->how == QK_REDUCE_DOT ? 2 : 1); i++)
        if ((types[i] & ~(int64_t)19) ||
            !qk_within(types[i] & 16 ? l->blob : l->arena, places[i], qk_size_of(types[i] & 15), QK_DIMS, r->size,
                       i ? r->other_stride : r->in_stride))
            return 0;
    return r->how >= 0 && r->how < QK_REDUCE_HOWS && r->out_type >= QK_U8 && r->out_type <= QK_S64 &&
           r->reduced >= 0 && r->reduced <= QK_DIMS &&
           qk_within(l->arena, r->out, qk_size_of(r->out_type), QK_DIMS - (int)r->reduced, r->size, r->out_stride);
}

static int qk_check_gather(const qk_gather_step *g, const qk_limits *l)
{
    if (g->bytes < 1 || g->span < g->bytes || g->count < 1 || g->count >= QK_MOST || g->offsets % 8 ||
        !qk_span(l->arena, g->source, g->span) || !qk_span2(l->arena, g->out, g->bytes, g->count, g->bytes, 1, 0) ||
        !qk_span(l->blob, g->offsets, 8 * g->count))
        return 0;
    const int64_t *offset = (const int64_t *)(l->constants + g->offsets);
    int64_t wrong = 0;
    for (int64_t i = 0; i < g->count; i++)
        wrong |= (offset[i] < 0) | (offset[i] > g->span - g->bytes);
    return !wrong;
}

static int qk_check_take(const qk_take_step *t, const qk_limits *l)
{
    return t->index_type >= QK_U8 && t->index_type <= QK_S64 && t->count >= 1 && t->count < QK_MOST &&
           t->rows >= 1 && t->rows < QK_MOST && t->bytes >= 1 && t->bytes < QK_MOST && t->outer >= 1 &&
           t->outer < QK_MOST && t->first >= -QK_MOST && t->first <= QK_MOST &&
           qk_span2(l->arena, t->index, qk_size_of(t->index_type), t->count, qk_size_of(t->index_type), 1, 0) &&
           qk_within(t->in_blob ? l->blob : l->arena, t->source, t->bytes, 2, (int64_t[]){t->rows, t->outer},
                     (int64_t[]){t->bytes, t->rows * t->bytes}) &&
           qk_within(l->arena, t->out, t->bytes, 2, (int64_t[]){t->count, t->outer},
                     (int64_t[]){t->bytes, t->count * t->bytes});
}

static int qk_check_scatter(const qk_scatter_step *t, const qk_limits *l)
{
    const int64_t size = qk_size_of(t->type & 15), out = qk_size_of(t->out_type), index = qk_size_of(t->index_type & 15);
    const int summed = t->how == QK_SCATTER_ADD && t->out_type == QK_S32 && (t->type & 15) <= QK_S32;
    return t->how >= 0 && t->how < QK_SCATTER_HOWS && t->out_type >= QK_U8 && t->out_type <= QK_S64 &&
           !(t->type & ~(int64_t)19) && !(t->index_type & ~(int64_t)19) && ((t->type & 15) == t->out_type || summed) &&
           t->rows >= 1 && t->rows < QK_MOST && t->columns >= 1 && t->columns < QK_MOST && t->count >= 1 &&
           t->count < QK_MOST &&
           qk_within(t->index_type & 16 ? l->blob : l->arena, t->index, index, 1, &t->count, &index) &&
           qk_within(t->type & 16 ? l->blob : l->arena, t->source, size, 2, (int64_t[]){t->columns, t->count},
                     (int64_t[]){size, t->columns * size}) &&
           qk_within(l->arena, t->out, out, 2, (int64_t[]){t->columns, t->rows},
                     (int64_t[]){out, t->columns * out});
}

static int qk_check(const qk_step *s, const qk_limits *l)
{
    switch (s->field[0]) {
    case QK_QUANTIZE: {
        const qk_quantize_step *q = &s->quantize;
        const int64_t size = qk_size_of(q->type);
        const int64_t sizes[3] = {q->planes, q->rows, q->row_items};
        const int64_t strides[3] = {q->out_plane, q->out_row, q->out_item};
        return q->input >= 0 && q->input < l->inputs && q->type >= QK_U8 &&
               q->type <= (q->raw ? QK_S64 : QK_S32) && !q->first_row && !q->rows_left &&
               qk_small(q->planes) && qk_small(q->rows) && q->row_items >= 1 && q->row_items < QK_MOST &&
               q->planes * q->rows < QK_MOST && q->low > -(1 << 24) && q->high < (1 << 24) && q->low <= q->high &&
               q->row_items <= l->input_bytes[q->input] / ((q->raw ? size : 4) * q->planes * q->rows) &&
               qk_within(l->arena, q->out, size, 3, sizes, strides) &&
               (q->raw || qk_span(l->blob, q->scale, 4 * (q->per_plane ? q->planes : 1)));
    }
    case QK_DEQUANTIZE: {
        const qk_dequantize_step *d = &s->dequantize;
        const int64_t size = qk_size_of(d->type);
        return d->output >= 0 && d->output < l->outputs && d->type >= QK_U8 && d->type <= (d->raw ? QK_S64 : QK_S32) && d->count >= 1 &&
               d->count < QK_MOST && (d->raw ? size : 4) * d->count <= l->output_bytes[d->output] &&
               qk_span(l->arena, d->source, size * d->count) &&
               (d->raw || qk_span(l->blob, d->scale, 4 * (d->per_item ? d->count : 1)));
    }
    case QK_GEMM:
        return qk_check_gemm(&s->gemm, l);
    case QK_DEPTHWISE:
        return qk_check_depthwise(&s->depthwise, l);
    case QK_ELEMENTWISE:
        return qk_check_elementwise(&s->elementwise, l);
    case QK_POOL:
        return qk_check_pool(&s->pool, l);
    case QK_COPY: {
        const qk_copy_step *c = &s->copy;
        return c->bytes >= 1 && c->bytes < QK_MOST &&
               qk_within(c->in_blob ? l->blob : l->arena, c->source, c->bytes, QK_DIMS, c->size, c->in_stride) &&
               qk_within(l->arena, c->out, c->bytes, QK_DIMS, c->size, c->out_stride);
    }
    case QK_FILL: {
        const qk_fill_step *f = &s->fill;
        return qk_small(f->height) && qk_small(f->row_bytes) && qk_small(f->top + 1) && qk_small(f->bottom + 1) &&
               qk_small(f->left + 1) && qk_small(f->right + 1) &&
               qk_span2(l->arena, f->out, f->left + f->row_bytes + f->right, f->top + f->height + f->bottom,
                        f->row_pitch, 1, 0);
    }
    case QK_LOOKUP: {
        const qk_lookup_step *p = &s->lookup;
        const int64_t n = p->columns, size = qk_size_of(p->type), last = p->entries - 1;
        return p->type >= QK_U8 && p->type <= QK_S32 && p->in_type >= QK_U8 && p->in_type <= QK_S32 &&
               (p->in_type == QK_U8 ? last == 255 : last >= 0 && last <= UINT16_MAX && !(p->entries & last)) &&
               n >= 1 && n < QK_MOST &&
               (!p->lined || (p->in_type == QK_S16 && p->type == QK_U8 && qk_span(l->blob, p->lines, sizeof(qk_line_table)))) &&
               qk_within(l->arena, p->source, n * qk_size_of(p->in_type), QK_LOOKUP_DIMS, p->size, p->in_stride) &&
               qk_within(l->arena, p->out, n * size, QK_LOOKUP_DIMS, p->size, p->out_stride) &&
               qk_span(l->blob, p->table, p->entries * size);
    }
    case QK_SOFTMAX: {
        const qk_softmax_step *p = &s->softmax;
        return qk_small(p->columns) && p->in_type >= QK_U8 && p->in_type <= QK_S32 && qk_small(p->entries) &&
               p->out_bits >= 0 && p->out_bits <= 20 && qk_small(p->together) &&
               (!p->in_bytes || (p->in_type == QK_U8 && qk_span(l->blob, p->bytes, 3 * 256))) &&
               qk_span2(l->arena, p->source, p->columns * qk_size_of(p->in_type), p->rows, p->in_stride, 1, 0) &&
               qk_span2(l->arena, p->out, p->columns * 4, p->rows, p->out_stride, 1, 0) &&
               qk_span(l->blob, p->table, 4 * p->entries) && p->scratch % 4 == 0 &&
               qk_span(l->arena, p->scratch, 8 * p->columns * p->together + 256);
    }
    case QK_STANDARDIZE: {
        const qk_standardize_step *p = &s->standardize;
        return qk_small(p->columns) && p->in_type >= QK_U8 && p->in_type <= QK_S32 && p->out_bits >= 0 &&
               p->out_bits <= 20 && p->root_bits >= 0 && p->root_bits <= 20 && p->most >= 1 && p->most < 1 << 30 &&
               qk_span2(l->arena, p->source, p->columns * qk_size_of(p->in_type), p->rows, p->in_stride, 1, 0) &&
               qk_span2(l->arena, p->out, p->columns * 4, p->rows, p->out_stride, 1, 0);
    }
    case QK_PACK: {
        const qk_pack_step *p = &s->pack;
        if (!qk_small(p->k) || !qk_small(p->columns) || !qk_small(p->groups) || p->tile < 0 || p->tile > QK_TILE_STEPS)
            return 0;
        const int64_t vectors = (p->columns + 15) / 16, bytes = vectors * qk_pack_steps(p) * 64;
        const int64_t sizes[3] = {p->groups, p->k, p->columns};
        const int64_t strides[3] = {p->in_group, p->stride_k, p->stride_n};
        return qk_within(l->arena, p->source, 1, 3, sizes, strides) && p->weight % 4 == 0 && p->bias % 4 == 0 &&
               qk_span2(l->arena, p->weight, bytes, p->groups, p->weight_group, 1, 0) &&
               qk_span(l->arena, p->bias, p->groups * vectors * 64);
    }
    case QK_WIDE:
        return qk_check_wide(&s->wide, l);
    case QK_REDUCE:
        return qk_check_reduce(&s->reduce, l);
    case QK_GATHER:
        return qk_check_gather(&s->gather, l);
    case QK_TAKE:
        return qk_check_take(&s->take, l);
    case QK_SCATTER:
        return qk_check_scatter(&s->scatter, l);
    case QK_PART: {
        const qk_part_step *p = &s->part;
        return p->count >= 1 && p->count < QK_MOST &&
               qk_span2(l->arena, p->source, p->bytes, p->takes ? p->count : 1, p->bytes, 1, 0) &&
               qk_span2(l->arena, p->out, p->bytes, p->takes ? 1 : p->count, p->bytes, 1, 0);
    }
    case QK_LOOP:
    case QK_REPEAT: /* qk_loops looks at them */
        return 1;
    default:
        return 0;
    }
}

static double qk_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void qk_one(const qk_step *s, const qk_memory *m)
{
    switch (s->field[0]) {
    case QK_QUANTIZE: qk_run_quantize(&s->quantize, m); break;
    case QK_DEQUANTIZE: qk_run_dequantize(&s->dequantize, m); break;
    case QK_GEMM:
#ifdef QK_AMX
        if (s->gemm.tile) {
            qk_run_tiles(&s->gemm, m);
            break;
        }
#endif
        qk_run_gemm(&s->gemm, m);
        break;
    case QK_DEPTHWISE: qk_run_depthwise(&s->depthwise, m); break;
    case QK_ELEMENTWISE: qk_run_elementwise(&s->elementwise, m); break;
    case QK_POOL: qk_run_pool(&s->pool, m); break;
    case QK_COPY: qk_run_copy(&s->copy, m); break;
    case QK_FILL: qk_run_fill(&s->fill, m); break;
    case QK_LOOKUP: qk_run_lookup(&s->lookup, m); break;
    case QK_SOFTMAX: qk_run_softmax(&s->softmax, m); break;
    case QK_STANDARDIZE: qk_run_standardize(&s->standardize, m); break;
    case QK_PACK: qk_run_pack(&s->pack, m); break;
    case QK_WIDE: qk_run_wide(&s->wide, m); break;
    case QK_REDUCE: qk_run_reduce(&s->reduce, m); break;
    case QK_GATHER: qk_run_gather(&s->gather, m); break;
    case QK_TAKE: qk_run_take(&s->take, m); break;
    case QK_SCATTER: qk_run_scatter(&s->scatter, m); break;
    }
}

/* The number of the first step that is a part outside of a loop, or a loop or its end that do not belong
 * together or lie within another; count where there is none. */
static int64_t qk_loops(const qk_step *steps, int64_t count)
{
    int64_t begun = -1;
    for (int64_t i = 0; i < count; i++) {
        const int64_t kind = steps[i].field[0];
        if (kind == QK_LOOP ? begun >= 0 : (kind == QK_PART || kind == QK_REPEAT) && begun < 0)
            return i;
        if (kind == QK_LOOP)
            begun = i;
        if (kind != QK_REPEAT)
            continue;
        const qk_repeat_step *r = &steps[i].repeat;
        if (r->rows != i - begun || r->count < 1 || r->count >= QK_MOST)
            return i;
        for (int64_t j = begun; j < i; j++)
            if (steps[j].field[0] == QK_PART && steps[j].part.count != r->count)
                return j;
        begun = -1;
    }
    return begun < 0 ? count : begun;
}

static void qk_run_part(const qk_part_step *p, const qk_memory *m, int64_t turn)
{
    const int64_t place = (p->back ? p->count - 1 - turn : turn) * p->bytes;
    memcpy(m->arena + p->out + (p->takes ? 0 : place), m->arena + p->source + (p->takes ? place : 0),
           (size_t)p->bytes);
}

/* What is run, as many int64: ctypes takes longer over fifteen arguments than a small network runs.
 * The next sample's inputs and outputs lie input_bytes and output_bytes further on. Lengths are those of
 * the arrays without QK_SLACK. taken, if given, counts the samples that the threads of a batch have begun:
 * each takes the next. seconds, if given, takes the CPU time of every step, added over the samples. With
 * lanes > 1 these many calls run one sample together; each has its scratch pitch bytes behind the one
 * before, and come, 0 at first, counts how often they have met. */
typedef struct {
    const qk_step *steps;
    int64_t count;
    uint8_t *arena;
    int64_t arena_bytes;
    const uint8_t *blob;
    int64_t blob_bytes;
    const uint8_t *const *inputs;
    const int64_t *input_bytes;
    int64_t input_count;
    uint8_t *const *outputs;
    const int64_t *output_bytes;
    int64_t output_count, samples;
    size_t *taken;
    double *seconds;
    int64_t lane, lanes, pitch;
    size_t *come;
} qk_call;

/* Whether every step stays within memory of such lengths, once for all calls with them, since checks
 * take as long as the steps of a small network. Returns 0, or 1 + the number of the first that does not. */
QK_EXPORT int64_t qk_check_call(const qk_call *c)
{
    const qk_limits limits = {c->arena_bytes, c->blob_bytes, c->input_count, c->output_count,
                              c->input_bytes, c->output_bytes, c->blob};
    for (int64_t i = 0; i < c->count; i++)
        if (!qk_check(&c->steps[i], &limits))
            return i + 1;
    const int64_t wrong = qk_loops(c->steps, c->count);
    if (wrong < c->count)
        return wrong + 1;
    return 0;
}

/* All steps of one sample, or what a lane does of them. */
static void qk_run_sample(const qk_call *c, int64_t sample)
{
    const qk_memory memory = {c->arena, c->blob, c->inputs, c->outputs, c->input_bytes, c->output_bytes, sample};
    size_t met = 0;
    for (int64_t i = 0, turn = 0; i < c->count; i++) {
        const double before = c->seconds ? qk_seconds() : 0;
        const int64_t ran = i;
        const qk_step *s = &c->steps[i];
        if (s->field[0] == QK_REPEAT) {
            turn = turn + 1 < s->repeat.count ? turn + 1 : 0;
            i -= turn ? s->repeat.rows : 0;
        } else if (s->field[0] == QK_PART) {
            if (!c->lane)
                qk_run_part(&s->part, &memory, turn);
        } else if (c->lanes > 1) {
            qk_step share = *s;
            if (qk_take_share(&share, c->lane, c->lanes, c->lane * c->pitch))
                qk_one(&share, &memory);
        } else {
            qk_one(s, &memory);
        }
        if (c->lanes > 1)
            qk_meet(c->come, ++met * (size_t)c->lanes);
        if (c->seconds)
            c->seconds[ran] += qk_seconds() - before;
    }
}

/* Run checked steps on samples one after the other; arena and blob are aligned to 64 bytes. */
QK_EXPORT void qk_run_call(const qk_call *c)
{
    size_t alone = 0, *const next = c->taken ? c->taken : &alone;
    if (c->lanes > 1)
        qk_run_sample(c, 0);
    else
        for (int64_t sample; (sample = (int64_t)__atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < c->samples;)
            qk_run_sample(c, sample);
}
