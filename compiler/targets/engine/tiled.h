/* Products by tiles: see amx_tiles.h for the instructions.
 *
 * Weights of a step with tiles lie in panels of one vector, [dot steps][16 columns][4]: `tile` dot steps of a panel are
 * a tile of weights as it is loaded. Runs of a window are padded with weights of 0 to a multiple of `tile`; rows are read
 * as far, into whatever lies behind them. Sixteen rows are a tile: of memory where they lie at equal distances, else of a
 * copy. Rows are neighbours along a line, of which the last tile begins earlier; no other tile has fewer rows.
 *
 * Two tiles of rows by two of weights stay in registers over all dot steps, so there is a load for every product. Sums
 * go through the first-level cache, where the epilogue takes those of the last four tiles while the next are summed.
 * int16 are two bytes: a tile of low ones, one of high ones, which have a sign, by the same weights.
 */
#include "step.h"

#define QK_TILE_BLOCK 64 /* tiles of rows at most that take a pair of panels one after the other */
#define QK_TILE_PAIR (2 * QK_TILE_MOST_ROWS * QK_TILE_ROW)

/* Pixels between two lines, if a line of tiles goes on from one line of the image to the next; the pixels between them
 * are computed as well and overwritten by those that follow. */
static int64_t qk_line_pitch(const qk_gemm_step *g)
{
    return g->height > 1 ? g->in_row / g->in_pixel : g->width;
}

/* Rows of one line, and the lines. */
static int64_t qk_line_rows(const qk_gemm_step *g)
{
    return g->rows_by == QK_BY_RUN    ? (g->height - 1) * qk_line_pitch(g) + g->width
           : g->rows_by == QK_BY_LINE ? g->width
                                      : g->height * g->width;
}
static int64_t qk_count_tiles(const qk_gemm_step *g)
{
    const int64_t lines = g->rows_by == QK_BY_LINE ? g->height : 1;
    return lines * ((qk_line_rows(g) + QK_TILE_MOST_ROWS - 1) / QK_TILE_MOST_ROWS);
}

/* Bytes for the copies of a block of tiles. */
static int64_t qk_bytes_of_copies(const qk_gemm_step *g)
{
    const int64_t all = qk_count_tiles(g), count = all < g->block ? all : g->block;
    const int64_t pairs = g->type == QK_S16 ? count : (count + 1) / 2;
    return g->rows_by == QK_BY_COPY ? pairs * g->seg_y * g->seg_x * (qk_steps(g) / g->tile) * QK_TILE_PAIR : 0;
}

/* Sums that wait for their epilogue: two halves of 16 rows, which begin at `out` and 16 pointers further. */
typedef struct {
    int32_t *sums;
    uint8_t *const *out;
    int64_t v, nv, halves;
} qk_waiting;

static void qk_finish_tiles(const qk_gemm_step *g, const qk_memory *m, int64_t group, int64_t rows, const qk_waiting *w)
{
    const int64_t vectors = (g->columns + 15) / 16, channel = w->v * 16;
    const int words = g->type == QK_S16;
    for (int64_t r = 0; words && r < rows; r++) /* of int16, the second half is that of high bytes */
        for (int64_t i = 0; i < w->nv; i++) {
            int32_t *const low = w->sums + r * 32 + i * 16;
            qk_store(low, qk_add(qk_load(low), qk_shift_left(qk_load(low + QK_TILE_MOST_ROWS * 32), 8)));
        }
    for (int64_t half = 0; half < (words ? 1 : w->halves); half++) {
        const int32_t *const sums = w->sums + half * QK_TILE_MOST_ROWS * 32;
        uint8_t *const *const out = w->out + half * QK_TILE_MOST_ROWS;
        qk_bytes how;
        const int ends = qk_scales(g, &how);
        if (ends && w->nv == 2 && channel + 32 <= g->columns) {
            const uint8_t *const factors = m->blob + g->rq.mult + 4 * (group * vectors * 16 + channel);
            const qk_real f0 = qk_load_real(factors), f1 = qk_load_real(factors + 64);
            const qk_vec less = qk_all(how.less);
#define QK_SCALED(r, i) qk_times(qk_load(sums + (r) * 32 + (i) * 16), f##i, less)
            for (int64_t r = 0; ends == QK_TO_WORDS && r < rows; r++)
                qk_store_words(2, out[r] + 2 * channel, QK_SCALED(r, 0), QK_SCALED(r, 1), less, less, how.bounds);
            for (int64_t r = 0; ends == QK_TO_BYTES && r < rows; r += 2) {
                const int64_t s = r + 1 < rows ? r + 1 : r;
                qk_store_bytes(2, out[r] + channel, out[s] + channel, 0, 0, QK_SCALED(r, 0), QK_SCALED(r, 1),
                               QK_SCALED(s, 0), QK_SCALED(s, 1), how.bounds);
            }
#undef QK_SCALED
            continue;
        }
        for (int64_t i = 0; i < w->nv; i++) {
            const int64_t at = channel + 16 * i, left = g->columns - at;
            qk_finish(&g->rq, m->blob, group * vectors * 16 + at, sums + i * 16, 32, rows, out, at,
                      left < 16 ? (int)left : 16);
        }
    }
}

/* What the tiles of a step have in common: of `runs` places of a row, `count` tiles each, `next` bytes apart. */
typedef struct {
    const int64_t *run;
    int64_t runs, count, next, stride, panel, tile_bytes;
} qk_tile_rows;

/* Sums of one or two tiles of rows by one or two panels. */
static inline __attribute__((always_inline)) void qk_sum_tiles(
    qk_amx *tiles, const int two_rows, const int two_panels, const int words, const qk_tile_rows *t, const uint8_t *a,
    const uint8_t *b, const uint8_t *weight, const int32_t *bias)
{
    const int64_t stride = t->stride, next = t->next, bytes = t->tile_bytes;
    const uint8_t *w = weight, *v = weight + t->panel;
    (void)tiles;
    QK_TILE_BARRIER();
    QK_TILE_LOAD(tiles, 0, bias, 0);
    if (two_panels) QK_TILE_LOAD(tiles, 1, bias + 16, 0);
    if (two_rows && words) {
        QK_TILE_ZERO(tiles, 2);
        if (two_panels) QK_TILE_ZERO(tiles, 3);
    } else if (two_rows) {
        QK_TILE_LOAD(tiles, 2, bias, 0);
        if (two_panels) QK_TILE_LOAD(tiles, 3, bias + 16, 0);
    }
    for (int64_t s = 0; s < t->runs; s++) {
        const uint8_t *x = a + t->run[s], *y = b + t->run[s];
        for (int64_t k = 0; k < t->count; k++, x += next, y += next, w += bytes, v += bytes) {
            QK_TILE_LOAD(tiles, 4, x, stride);
            QK_TILE_LOAD(tiles, 6, w, QK_TILE_ROW);
            QK_TILE_DOT(tiles, 0, 4, 6);
            if (two_panels) {
                QK_TILE_LOAD(tiles, 7, v, QK_TILE_ROW);
                QK_TILE_DOT(tiles, 1, 4, 7);
            }
            if (two_rows) {
                QK_TILE_LOAD(tiles, 5, y, stride);
                if (words) {
                    QK_TILE_DOT_SIGNED(tiles, 2, 5, 6);
                    if (two_panels) QK_TILE_DOT_SIGNED(tiles, 3, 5, 7);
                } else {
                    QK_TILE_DOT(tiles, 2, 5, 6);
                    if (two_panels) QK_TILE_DOT(tiles, 3, 5, 7);
                }
            }
        }
    }
}

/* A row, `count` tiles from places `step` bytes apart, to the copies. */
static void qk_copy_bytes_row(uint8_t *to, const uint8_t *from, int64_t count, int64_t step)
{
    for (int64_t k = 0; k < count; k++, from += step, to += QK_TILE_PAIR)
        memcpy(to, from, QK_TILE_ROW);
}
static void qk_copy_words_row(uint8_t *to, const uint8_t *from, int64_t count, int64_t step)
{
    for (int64_t k = 0; k < count; k++, from += step, to += QK_TILE_PAIR)
        qk_split_words(to, to + QK_TILE_PAIR / 2, from);
}

static __attribute__((noinline)) void qk_run_tiles(const qk_gemm_step *g, const qk_memory *m)
{
    const int words = g->type == QK_S16;
    const int64_t size = qk_size_of(g->type), segments = g->seg_y * g->seg_x, count = qk_steps(g) / g->tile;
    const int64_t vectors = (g->columns + 15) / 16, line = qk_line_rows(g), all = qk_count_tiles(g);
    const int64_t rows = line < QK_TILE_MOST_ROWS ? line : QK_TILE_MOST_ROWS;
    const int64_t a_line = (line + QK_TILE_MOST_ROWS - 1) / QK_TILE_MOST_ROWS, step = 4 * g->tile * size;
    const int64_t pitch = g->rows_by == QK_BY_RUN ? qk_line_pitch(g) : g->width;
    const int64_t panel = qk_weight_bytes(g, count * g->tile * segments), a_block = words ? 1 : 2;
    uint8_t *const copies = m->arena + g->scratch;
    const uint8_t *from[QK_TILE_BLOCK];
    uint8_t *out[QK_TILE_BLOCK * QK_TILE_MOST_ROWS];
    int64_t segment[QK_MAX_SEGMENTS], start = 0;
    int32_t sums[2][2 * QK_TILE_MOST_ROWS * 32] __attribute__((aligned(64)));
    for (int64_t s = 0; s < segments; s++)
        segment[s] = s / g->seg_x * g->seg_row + s % g->seg_x * g->seg_pixel;
    qk_tile_rows t = {segment, segments, count, step, g->in_pixel, panel, 64 * g->tile};
    if (g->rows_by == QK_BY_COPY)
        t = (qk_tile_rows){&start, 1, count * segments, QK_TILE_PAIR, QK_TILE_ROW, panel, 64 * g->tile};
    qk_amx tiles;
    qk_tiles_begin(&tiles, rows, g->tile);
    for (int64_t group = 0; group < g->groups; group++) {
        const uint8_t *in = m->arena + g->source + group * g->in_group;
        const uint8_t *weights = (g->weight_in_arena ? m->arena : m->blob) + g->weight + group * g->weight_group;
        const int32_t *bias = (const int32_t *)((g->bias_in_arena ? m->arena : m->blob) + g->bias) + group * vectors * 16;
        for (int64_t first = 0; first < all; first += g->block) {
            const int64_t n = all - first < g->block ? all - first : g->block;
            for (int64_t i = 0; i < n; i++) {
                const int64_t lines = (first + i) / a_line, at = (first + i - lines * a_line) * QK_TILE_MOST_ROWS;
                const int64_t begin = lines * line + (at < line - rows ? at : line - rows);
                int64_t y = begin / pitch, x = begin - y * pitch;
                uint8_t *const to = copies + (i / a_block) * t.count * QK_TILE_PAIR + (i % a_block) * (QK_TILE_PAIR / 2);
                from[i] = g->rows_by == QK_BY_COPY ? to : in + y * g->in_row + x * g->in_pixel;
                for (int64_t r = 0; r < rows; r++, x++) {
                    if (x == pitch) {
                        x = 0;
                        y++;
                    }
                    const int beyond = x >= g->width; /* between two lines */
                    out[i * QK_TILE_MOST_ROWS + r] = m->arena + g->out + group * g->out_group + (y + beyond) * g->out_row +
                                                     (beyond ? 0 : x) * g->out_pixel;
                    const uint8_t *const row = in + y * g->in_row + x * g->in_pixel;
                    for (int64_t s = 0; g->rows_by == QK_BY_COPY && s < segments; s++)
                        (words ? qk_copy_words_row : qk_copy_bytes_row)(to + s * count * QK_TILE_PAIR + r * QK_TILE_ROW,
                                                                        row + segment[s], count, step);
                }
            }
            qk_waiting waiting = {0, 0, 0, 0, 0};
            const int64_t blocks = (n + a_block - 1) / a_block, share = 2 * panel / blocks;
            for (int64_t v = 0, turn = 0; v < vectors; v += 2) {
                const int64_t nv = vectors - v < 2 ? 1 : 2;
                const uint8_t *weight = weights + v * panel, *ahead = weight + 2 * panel;
                for (int64_t i = 0; i < n; i += a_block, turn ^= 1, ahead += share) {
                    const int two = !words && i + 1 < n;
                    const uint8_t *a = from[i], *b = words ? a + QK_TILE_PAIR / 2 : from[two ? i + 1 : i];
                    for (int64_t p = 0; p < share; p += 64) /* the next panels, on their way to the second-level cache */
                        __builtin_prefetch(ahead + p, 0, 2);
#define QK_SUM(rows, panels, words) qk_sum_tiles(&tiles, rows, panels, words, &t, a, b, weight, bias + v * 16)
                    if (words && nv == 2)
                        QK_SUM(1, 1, 1);
                    else if (words)
                        QK_SUM(1, 0, 1);
                    else if (two && nv == 2)
                        QK_SUM(1, 1, 0);
                    else if (two)
                        QK_SUM(1, 0, 0);
                    else if (nv == 2)
                        QK_SUM(0, 1, 0);
                    else
                        QK_SUM(0, 0, 0);
#undef QK_SUM
                    if (waiting.nv)
                        qk_finish_tiles(g, m, group, rows, &waiting);
                    int32_t *const to = sums[turn];
                    QK_TILE_STORE(&tiles, 0, to, 128);
                    if (nv == 2) QK_TILE_STORE(&tiles, 1, to + 16, 128);
                    if (two || words) {
                        QK_TILE_STORE(&tiles, 2, to + QK_TILE_MOST_ROWS * 32, 128);
                        if (nv == 2) QK_TILE_STORE(&tiles, 3, to + QK_TILE_MOST_ROWS * 32 + 16, 128);
                    }
                    waiting = (qk_waiting){to, out + i * QK_TILE_MOST_ROWS, v, nv, 1 + two};
                }
            }
            qk_finish_tiles(g, m, group, rows, &waiting);
        }
    }
    qk_tiles_end(&tiles);
}
