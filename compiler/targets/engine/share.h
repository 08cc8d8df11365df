/* Lanes: threads that run one sample together. Each runs its share of a step, then waits for the others.
 *
 * A share is the step with fewer rows, so kernels know nothing of lanes; a step without such an axis is
 * run by one lane. No sum is divided, so the bits are those of one lane.
 */
#include "step.h"

#include <sched.h>

/* Rows first .. first + count of n belong to a lane, in multiples of `unit` but for the last ones. */
typedef struct {
    int64_t first, count;
} qk_portion;

static qk_portion qk_portion_of(int64_t n, int64_t unit, int64_t lane, int64_t lanes)
{
    const int64_t units = n / unit, first = units * lane / lanes, next = units * (lane + 1) / lanes;
    return (qk_portion){first * unit, (lane + 1 == lanes ? n : next * unit) - first * unit};
}

/* The first of some axes that has more than one element, else the last one. */
static int qk_shared_axis(const int64_t *size, int64_t axes)
{
    int d = 0;
    while (d + 1 < axes && size[d] == 1)
        d++;
    return d;
}

/* Panels of the columns instead of rows, where the weights are more bytes than the rows: every lane would
 * read all of them. Returns 0 where fewer columns make other panels, or where there is one. */
static int qk_take_columns(qk_gemm_step *g, int64_t lane, int64_t lanes, qk_portion *part)
{
    const int64_t vectors = (g->columns + 15) / 16, panels = (vectors + QK_NV - 1) / QK_NV;
    const int64_t wide = vectors % panels, least = vectors / panels;
    if (g->groups > 1 || panels < lanes || g->columns <= g->height * g->width)
        return 0;
    int64_t v = 0, end = 0; /* vectors of this lane, and of each one in turn */
    for (int64_t one = 0, panel = 0, next, before; one < lanes; one++, panel = next) {
        before = end;
        next = panels * (one + 1) / lanes;
        end = next * least + (next < wide ? next : wide);
        if ((end - before + QK_NV - 1) / QK_NV != next - panel)
            return 0;
        if (one == lane) {
            v = before;
            part->count = (end - before) * 16;
        }
    }
    g->weight += v * qk_weight_bytes(g, qk_steps(g) * g->seg_y * g->seg_x);
    g->bias += v * 64;
    g->out += v * 16 * qk_size_of(g->rq.type);
    g->rq.mult += v * 64;
    g->rq.shift += v * 64;
    g->rq.add += g->rq.kind == QK_FACTOR ? v * 128 : g->rq.kind == QK_EVEN ? v * 64 : 0;
    g->rq.low += g->rq.by_channel ? v * 64 : 0;
    g->rq.high += g->rq.by_channel ? v * 64 : 0;
    g->columns -= v * 16;
    part->count = g->columns = g->columns < part->count ? g->columns : part->count;
    return 1;
}

/* Make a step the share of a lane; whether there is any. `away`: from the scratch of lane 0 to its own. */
static int qk_take_share(qk_step *s, int64_t lane, int64_t lanes, int64_t away)
{
    qk_portion part = {0, 0};
#define QK_PART(n, unit)                                                              \
    ((part = qk_portion_of((n), (unit), lane, lanes)), (n) = part.count, part.first)
    switch (s->field[0]) {
    case QK_QUANTIZE: {
        qk_quantize_step *q = &s->quantize;
        int64_t rows = q->rows; /* of the whole input */
        q->first_row = QK_PART(rows, 1);
        q->rows_left = q->rows - q->first_row - rows;
        break;
    }
    case QK_GEMM: {
        qk_gemm_step *g = &s->gemm;
        g->scratch += away;
        if (qk_take_columns(g, lane, lanes, &part))
            break;
        const int down = g->height > 1;
        const int64_t first = down ? QK_PART(g->height, 1) : QK_PART(g->width, 1);
        g->source += first * (down ? g->in_row : g->in_pixel);
        g->out += first * (down ? g->out_row : g->out_pixel);
        break;
    }
    case QK_DEPTHWISE: {
        qk_depthwise_step *d = &s->depthwise;
        const int64_t first = QK_PART(d->height, d->together);
        d->source += first * d->stride_y * d->in_row;
        d->out += first * d->out_row;
        d->scratch += away;
        break;
    }
    case QK_ELEMENTWISE: {
        qk_elementwise_step *e = &s->elementwise;
        int64_t *const size[3] = {&e->d0, &e->d1, &e->columns};
        int64_t *const from[3] = {&e->first_0, &e->first_1, &e->first_column};
        const int axis = qk_shared_axis((int64_t[]){e->d0, e->d1, e->columns}, 3);
        *from[axis] = QK_PART(*size[axis], axis == 2 ? QK_BLOCK : 1);
        *size[axis] += *from[axis]; /* where it ends */
        break;
    }
    case QK_POOL: {
        qk_pool_step *p = &s->pool;
        const int64_t first = QK_PART(p->height, 1);
        p->top -= first * p->stride_y;
        p->out += first * p->out_row;
        break;
    }
    case QK_COPY: {
        qk_copy_step *c = &s->copy;
        const int axis = qk_shared_axis(c->size, QK_DIMS);
        const int64_t first = QK_PART(c->size[axis], 1);
        c->source += first * c->in_stride[axis];
        c->out += first * c->out_stride[axis];
        break;
    }
    case QK_LOOKUP: {
        qk_lookup_step *l = &s->lookup;
        const int axis = qk_shared_axis((int64_t[]){l->size[0], l->size[1], l->columns}, 3);
        const int64_t first = axis == 2 ? QK_PART(l->columns, 64) : QK_PART(l->size[axis], 1);
        l->source += first * (axis == 2 ? qk_size_of(l->in_type) : l->in_stride[axis]);
        l->out += first * (axis == 2 ? qk_size_of(l->type) : l->out_stride[axis]);
        break;
    }
    case QK_SOFTMAX: {
        qk_softmax_step *x = &s->softmax;
        const int64_t first = QK_PART(x->rows, 1);
        x->source += first * x->in_stride;
        x->out += first * x->out_stride;
        x->scratch += away;
        break;
    }
    case QK_STANDARDIZE: {
        qk_standardize_step *x = &s->standardize;
        const int64_t first = QK_PART(x->rows, 1);
        x->source += first * x->in_stride;
        x->out += first * x->out_stride;
        break;
    }
    case QK_PACK: {
        qk_pack_step *p = &s->pack;
        const int64_t first = QK_PART(p->groups, 1);
        p->source += first * p->in_group;
        p->weight += first * p->weight_group;
        p->bias += first * ((p->columns + 15) / 16) * 64;
        break;
    }
    case QK_REDUCE: {
        qk_reduce_step *r = &s->reduce;
        if (r->reduced == QK_DIMS)
            return !lane;
        const int axis = qk_shared_axis(r->size, QK_DIMS - r->reduced);
        const int64_t first = QK_PART(r->size[axis], 1);
        r->source += first * r->in_stride[axis];
        r->other += first * r->other_stride[axis];
        r->out += first * r->out_stride[axis];
        break;
    }
    default:
        return !lane;
    }
#undef QK_PART
    return part.count > 0;
}

/* Wait until all lanes have come as often: `all` is how often they have then come together. */
static void qk_meet(size_t *come, size_t all)
{
    __atomic_fetch_add(come, 1, __ATOMIC_ACQ_REL);
    for (int turns = 0; __atomic_load_n(come, __ATOMIC_ACQUIRE) < all; turns++)
        if (turns > 4096)
            sched_yield();
}
