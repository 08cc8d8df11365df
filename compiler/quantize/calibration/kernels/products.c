/* Loops around products of what weights read: their sums over the data, and rounding weights by
 * them. Each has a numpy twin that gives the same bits: sums of whole numbers are exact in any order,
 * other operations stand in the order of the twin, with no fused multiply-add.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

/* Vectors of GROUP channels, as many doubles as a register holds. */
#if defined(__AVX512F__)
#define GROUP 8
#elif defined(__AVX__)
#define GROUP 4
#else
#define GROUP 2
#endif
typedef double Group __attribute__((vector_size(8 * GROUP), aligned(8)));
#define TO_WHOLE 6755399441055744.0 /* 1.5 * 2^52: adding it rounds halves to even, as rint does */

/* out = rint(x / unit), unit of each channel; x, out: (outer, channels, inner).
 * Returns whether all |out| <= limit; NaN is not.
 */
int32_t qs_steps(const float *x, int64_t outer, int64_t channels, int64_t inner,
                 const double *unit, double limit, double *out) {
    int fits = 1;
    for (int64_t row = 0; row < outer * channels; row += inner > 1 ? 1 : channels) {
        int64_t count = inner > 1 ? inner : channels, shared = inner > 1 ? 0 : 1;
        const float *from = x + row * inner;
        const double *by = unit + (inner > 1 ? row % channels : 0);
        double *to = out + row * inner;
        int all = 1;
        if (shared)
            for (int64_t i = 0; i < count; i++) {
                to[i] = (double)from[i] / by[i] + TO_WHOLE - TO_WHOLE;
                all &= (to[i] <= limit) & (to[i] >= -limit);
            }
        else
            for (int64_t i = 0; i < count; i++) {
                to[i] = (double)from[i] / *by + TO_WHOLE - TO_WHOLE;
                all &= (to[i] <= limit) & (to[i] >= -limit);
            }
        fits &= all;
    }
    return fits;
}

/* What a depthwise convolution reads of one image, of the numbers that qs_steps gives. */
typedef struct {
    int32_t height, width, top, left;      /* of a channel; zeros above and on the left */
    int32_t padded_height, padded_width;   /* with all zeros around it; an odd width is in memory, so
                                              that rows do not meet in a few sets of the cache */
    int32_t rows, columns;                 /* of the window */
    int32_t row_stride, column_stride, row_dilation, column_dilation;
    int32_t out_height, out_width;
} Window;

/* Channels first .. first + GROUP - 1 side by side, with zeros around them and in place of channels
 * that are not there. */
static int gather_group(const float *x, int32_t channels, int32_t first, const double *unit,
                        double limit, const Window *w, Group *block) {
    const float *from[GROUP];
    static const float nothing = 0.0f;
    int32_t step[GROUP];
    Group by;
    int64_t size = (int64_t)w->height * w->width;
    for (int32_t c = 0; c < GROUP; c++) {
        int there = first + c < channels;
        from[c] = there ? x + (first + c) * size : &nothing;
        step[c] = there;
        by[c] = there ? unit[first + c] : 1.0;
    }
    memset(block, 0, sizeof(Group) * (size_t)w->padded_height * w->padded_width);
    Group high = by - by + limit;
    __typeof__(high <= high) fits = high <= high;
    for (int32_t r = 0; r < w->height; r++) {
        Group *row = block + (int64_t)(r + w->top) * w->padded_width + w->left;
        int64_t start = (int64_t)r * w->width;
        for (int32_t k = 0; k < w->width; k++) {
            Group value;
            for (int32_t c = 0; c < GROUP; c++) value[c] = (double)from[c][(start + k) * step[c]];
            value = value / by + TO_WHOLE - TO_WHOLE;
            fits &= (value <= high) & (value >= -high);
            row[k] = value;
        }
    }
    int all = 1;
    for (int32_t c = 0; c < GROUP; c++) all &= fits[c] != 0;
    return all;
}

#define LAGS 3  /* distances of taps whose sums are kept in registers together, ... */
#define PIECE 32 /* ... over so many rows, which stay in the first cache */

/* sums[d][x] = sum of a[y][x] * b[y][x + d * apart] over count rows y that lie below each other,
 * for d < LAGS; sums[d] lies next groups behind sums[d - 1]. Writes an even number of columns. */
static inline __attribute__((always_inline)) void
lag_sums(const Group *a, const Group *b, int64_t apart, int32_t count, int64_t below, int32_t width,
         Group *sums, int64_t next) {
    for (int32_t start = 0; start < count; start += PIECE) {
        int32_t rows = count - start < PIECE ? count - start : PIECE;
        for (int32_t x = 0; x < width; x += 2) {
            const Group *p = a + start * below + x, *q = b + start * below + x;
            const Group *r = q + apart, *t = r + apart;
            Group u0 = {0}, u1 = {0}, v0 = {0}, v1 = {0}, w0 = {0}, w1 = {0};
            for (int32_t y = 0; y < rows; y++) {
                Group p0 = p[0], p1 = p[1];
                __asm__("" : : : "memory"); /* or gcc 12 reads them again for every product */
                u0 += p0 * q[0], u1 += p1 * q[1];
                v0 += p0 * r[0], v1 += p1 * r[1];
                w0 += p0 * t[0], w1 += p1 * t[1];
                p += below, q += below, r += below, t += below;
            }
            Group *u = sums + x, *v = u + next, *w = v + next;
            if (start) u0 += u[0], u1 += u[1], v0 += v[0], v1 += v[1], w0 += w[0], w1 += w[1];
            u[0] = u0, u[1] = u1, v[0] = v0, v[1] = v1, w[0] = w0, w[1] = w1;
        }
    }
}

/* sums[s] = what column s of the window reads of one row of sums of columns. */
static void window_sums(const Group *from, const Window *w, int32_t first, int32_t end,
                        Group *sums) {
    int64_t stride = w->column_stride;
    for (int32_t s = first; s < end; s++) {
        const Group *read = from + s * w->column_dilation;
        Group even = {0}, odd = {0};
        if (w->column_dilation == 1 && s - first >= stride) {
            even = sums[s - stride] - read[-stride] + read[stride * (w->out_width - 1)];
        } else {
            for (int32_t k = 0; k + 1 < w->out_width; k += 2)
                even += read[k * stride], odd += read[(k + 1) * stride];
            if (w->out_width % 2) even += read[(w->out_width - 1) * stride];
        }
        sums[s] = even + odd;
    }
}

/* all[k][l] += products of taps k and l, l being down rows below k and right .. right + LAGS - 1
 * columns beside it, over all positions. They are summed along columns first, so that pairs of one
 * distance share those sums but for the first and last rows. Whole numbers below 2^53: all exact.
 * columns: LAGS * rows * (padded_width + 1) groups, then one for each column of the window.
 */
static void distance_products(const Group *block, const Window *w, int32_t down, int32_t right,
                              Group *columns, Group *all) {
    int32_t taps = w->rows * w->columns, height = w->out_height, width = w->padded_width;
    int64_t line = width, apart = w->column_dilation, below = w->row_stride * line;
    int64_t next = w->rows * (line + 1);
    Group *totals = columns + LAGS * next;
    const Group *other = block + down * w->row_dilation * line + right * apart;
    for (int32_t r = 0; r + down < w->rows; r++) {
        Group *sums = columns + r * (line + 1);
        const Group *a = block + r * w->row_dilation * line;
        const Group *b = other + r * w->row_dilation * line;
        if (w->row_dilation == 1 && r >= w->row_stride) {
            for (int32_t d = 0; d < LAGS; d++) {
                Group *to = sums + d * next;
                const Group *before = to - w->row_stride * (line + 1), *gone = a - below;
                const Group *lag = b - below + d * apart, *come = gone + below * height;
                for (int32_t x = 0; x < width; x++)
                    to[x] = before[x] - gone[x] * lag[x] + come[x] * lag[x + below * height];
            }
        } else if (apart == 1) {
            lag_sums(a, b, 1, height, below, width, sums, next);
        } else {
            lag_sums(a, b, apart, height, below, width, sums, next);
        }
        for (int32_t d = 0, away = right; d < LAGS && away < w->columns; d++, away++) {
            int32_t first = away < 0 ? -away : 0, end = w->columns - (away < 0 ? 0 : away);
            window_sums(sums + d * next, w, first, end, totals);
            for (int32_t s = first; s < end; s++) {
                int32_t k = r * w->columns + s;
                all[k * (taps + 1) + k + down * w->columns + away] += totals[s];
            }
        }
    }
}

/* all[k][taps] += what tap k reads, over all positions; columns as above. */
static void tap_sums(const Group *block, const Window *w, Group *columns, Group *all) {
    int32_t taps = w->rows * w->columns, height = w->out_height;
    int64_t line = w->padded_width, below = w->row_stride * line;
    Group *totals = columns + w->rows * line;
    for (int32_t r = 0; r < w->rows; r++) {
        Group *sums = columns + r * line;
        const Group *top = block + r * w->row_dilation * line;
        int shared = w->row_dilation == 1 && r >= w->row_stride;
        for (int64_t x = 0; x < line; x++) {
            const Group *at = top + x;
            Group even = {0}, odd = {0};
            if (shared) {
                even = sums[x - below] - at[-below] + at[below * (height - 1)];
            } else {
                for (int32_t y = 0; y + 1 < height; y += 2, at += 2 * below)
                    even += at[0], odd += at[below];
                if (height % 2) even += at[0];
            }
            sums[x] = even + odd;
        }
        window_sums(sums, w, 0, w->columns, totals);
        for (int32_t s = 0; s < w->columns; s++)
            all[(r * w->columns + s) * (taps + 1) + taps] += totals[s];
    }
}

/* products[c][k][l] += sum over positions of all images of what taps k and l read of channel c, and
 * sums[c][k] += that of tap k, in whole steps of unit[c]. x: (images, channels, height, width).
 * scratch: GROUP times as many doubles as padded_width * padded_height + 2 * margin +
 * LAGS * rows * (padded_width + 1) + columns + taps * (taps + 1) + 1, margin being
 * (columns + LAGS) * column_dilation: distances that no window has are multiplied and not read.
 * Returns whether all steps are within limit; if not, the sums are not defined.
 */
int32_t qs_window_products(const float *x, int32_t images, int32_t channels, const double *unit,
                           double limit, const Window *w, double *scratch, int64_t *products,
                           int64_t *sums) {
    int32_t taps = w->rows * w->columns;
    int64_t image_size = (int64_t)channels * w->height * w->width;
    int64_t margin = (int64_t)(w->columns + LAGS) * w->column_dilation;
    int64_t block_size = (int64_t)w->padded_width * w->padded_height;
    Group *start = (Group *)(((uintptr_t)scratch + sizeof(Group) - 1) & ~(sizeof(Group) - 1));
    Group *block = start + margin, *columns = block + block_size + margin;
    Group *all = columns + LAGS * w->rows * ((int64_t)w->padded_width + 1) + w->columns;
    memset(start, 0, sizeof(Group) * (size_t)(2 * margin + block_size));
    for (int32_t first = 0; first < channels; first += GROUP) {
        /* all: (taps, taps + 1), the last column for the sums */
        memset(all, 0, sizeof(Group) * (size_t)taps * (taps + 1));
        for (int32_t image = 0; image < images; image++) {
            if (!gather_group(x + image * image_size, channels, first, unit, limit, w, block))
                return 0;
            tap_sums(block, w, columns, all);
            for (int32_t down = 0; down < w->rows; down++)
                for (int32_t right = down ? 1 - w->columns : 0; right < w->columns; right += LAGS)
                    distance_products(block, w, down, right, columns, all);
        }
        for (int32_t c = 0; c < GROUP && first + c < channels; c++) {
            int64_t *own = products + (int64_t)(first + c) * taps * taps;
            for (int32_t k = 0; k < taps; k++) {
                const Group *of_tap = all + k * (taps + 1);
                sums[(int64_t)(first + c) * taps + k] += (int64_t)of_tap[taps][c];
                for (int32_t l = k; l < taps; l++) {
                    own[k * taps + l] += (int64_t)of_tap[l][c];
                    own[l * taps + k] = own[k * taps + l];
                }
            }
        }
    }
    return 1;
}

#define PAIRED 32 /* positions that are read together, which stay in the first cache */
#define TILE (4 * GROUP)

/* products[g][k][l] += sum over the positions of what taps k and l read of one[g], and crossed[g][k][l]
 * of what k reads of other[g] and l of one[g]; sums: (2, groups, taps), of either. one, other: (groups,
 * size), whole numbers; reads: (taps, positions), places in them.
 * scratch: 2 * (PAIRED + taps) * (taps + TILE) + GROUP doubles.
 */
void qs_paired_products(const double *one, const double *other, int64_t groups, int64_t size,
                        const int64_t *reads, int64_t taps, int64_t positions, double *scratch,
                        int64_t *products, int64_t *crossed, int64_t *sums) {
    int64_t line = (taps + TILE - 1) / TILE * TILE;
    double *read = (double *)(((uintptr_t)scratch + sizeof(Group) - 1) & ~(sizeof(Group) - 1));
    double *more = read + PAIRED * line, *own = more + PAIRED * line, *both = own + taps * line;
    memset(read, 0, sizeof(double) * (size_t)(2 * PAIRED * line));
    for (int64_t g = 0; g < groups; g++, one += size, other += size) {
        memset(own, 0, sizeof(double) * (size_t)(2 * taps * line));
        for (int64_t first = 0; first < positions; first += PAIRED) {
            int64_t count = positions - first < PAIRED ? positions - first : PAIRED;
            for (int64_t k = 0; k < taps; k++) {
                double total = 0.0, rest = 0.0;
                for (int64_t p = 0; p < count; p++) {
                    int64_t place = reads[k * positions + first + p];
                    total += read[p * line + k] = one[place];
                    rest += more[p * line + k] = other[place];
                }
                sums[g * taps + k] += (int64_t)total;
                sums[(groups + g) * taps + k] += (int64_t)rest;
            }
            for (int64_t k = 0; k < taps; k++)
                for (int64_t l = 0; l < line; l += TILE) {
                    Group *a = (Group *)(own + k * line + l), *b = (Group *)(both + k * line + l);
                    Group a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3];
                    Group b0 = b[0], b1 = b[1], b2 = b[2], b3 = b[3];
                    for (int64_t p = 0; p < count; p++) {
                        const Group *y = (const Group *)(read + p * line + l);
                        double s = read[p * line + k], t = more[p * line + k];
                        a0 += s * y[0], a1 += s * y[1], a2 += s * y[2], a3 += s * y[3];
                        b0 += t * y[0], b1 += t * y[1], b2 += t * y[2], b3 += t * y[3];
                    }
                    a[0] = a0, a[1] = a1, a[2] = a2, a[3] = a3;
                    b[0] = b0, b[1] = b1, b[2] = b2, b[3] = b3;
                }
        }
        for (int64_t k = 0; k < taps; k++)
            for (int64_t l = 0; l < taps; l++) {
                products[(g * taps + k) * taps + l] += (int64_t)own[k * line + l];
                crossed[(g * taps + k) * taps + l] += (int64_t)both[k * line + l];
            }
    }
}

/* out = what x >= 0 loses on the grid 0 .. levels times the scale of its row, halves going up. */
void qs_grid_errors(const float *restrict x, int64_t rows, int64_t columns, const float *scale,
                    float levels, float *restrict out) {
    for (int64_t row = 0; row < rows; row++, x += columns, out += columns) {
        float unit = scale[row];
        for (int64_t k = 0; k < columns; k++) {
            float level = floorf(x[k] / unit + 0.5f);
            level = level < levels ? level : levels;
            out[k] = level * unit - x[k];
        }
    }
}

static inline int64_t floor_divided(int64_t a, int64_t b) { return a / b - (a % b < 0); }

/* same[c] = 0 where rint(fl(x * a)) takes the step to one of the levels elsewhere than the rounding of
 * x * multiplier[c] * 2^-shift[c]; exact: that factor, a: the float32 nearest to it. Halves go up
 * (ties 0), away from zero (1), or to the even neighbour (2). x: x_low[c] .. x_high[c].
 * The numpy twin, with the reasons: compiler/ops/rules/float_product.py.
 */
void qs_compare_steps(const double *exact, const int64_t *multiplier, const int64_t *shift,
                      const int64_t *x_low, const int64_t *x_high, int64_t channels, int32_t ties,
                      const int64_t *levels, int64_t num, double margin, double beyond,
                      uint8_t *same) {
    for (int64_t c = 0; c < channels; c++) {
        if (!same[c] || multiplier[c] == 0) continue; /* a factor of 0 is never near a tie */
        double inverse = 1 / exact[c], low = (double)x_low[c], high = (double)x_high[c];
        float factor = (float)exact[c];
        for (int64_t j = 0; j < num && same[c]; j++) {
            int64_t k = levels[j];
            double u = ((double)k - 0.5) * inverse;
            if (fabs(rint(u) - u) > margin * (fabs(u) + 1)) continue;
            if (!(u >= low - beyond && u <= high + beyond)) continue;
            /* Within reach |multiplier * u| < 2^56. (2 k - 1) 2^(shift - 1) is to be whole. */
            int64_t more = shift[c] < 1 ? 1 - shift[c] : 0;
            int64_t edge = (2 * k - 1) * ((int64_t)1 << (shift[c] + more - 1));
            int64_t by = multiplier[c] * ((int64_t)1 << more);
            int rises = ties == 0 || (ties == 1 ? k > 0 : k % 2 == 0);
            /* A tie that does not rise to k puts the step strictly above the edge. */
            int64_t step = rises ? -floor_divided(-edge, by) : floor_divided(edge, by) + 1;
            int64_t at = step < x_low[c] ? x_low[c] : step > x_high[c] ? x_high[c] : step;
            int64_t before = step - 1;
            before = before < x_low[c] ? x_low[c] : before > x_high[c] ? x_high[c] : before;
            int taken = rintf((float)at * factor) >= (float)k || step > x_high[c];
            int not_yet = rintf((float)before * factor) < (float)k || step <= x_low[c];
            same[c] = taken && not_yet;
        }
    }
}

/* The nearest whole number from low to high, halves away from zero. */
static inline double on_grid(double value, double low, double high) {
    double whole = trunc(value + copysign(0.5, value));
    whole = whole > low ? whole : low;
    return whole < high ? whole : high;
}

/* Round a block of columns, one after the other, the later ones making up for what was rounded.
 * values, found, errors: (groups, rows, width); factor: (groups, width, width), upper triangular.
 */
void qs_round_columns(double *values, const double *factor, int64_t groups, int64_t rows,
                      int64_t width, double low, double high, double *found,
                      double *errors) {
    for (int64_t row = 0; row < groups * rows; row++) {
        const double *upper = factor + row / rows * width * width;
        double *left = values + row * width, *to = found + row * width, *lost = errors + row * width;
        for (int64_t k = 0; k < width; k++) {
            const double *line = upper + k * width;
            to[k] = on_grid(left[k], low, high);
            double error = (left[k] - to[k]) / line[k];
            lost[k] = error;
            for (int64_t j = k + 1; j < width; j++) left[j] -= error * line[j];
        }
    }
}

/* Move every whole number of a row to where it is best beside the others, column after column, at
 * most so many times, until none moves. Moves grow rare, so the slope follows move by move.
 * found, slope: (groups, rows, taps); hessian: (groups, taps, taps); diagonal: (groups, taps).
 */
void qs_move_rows(double *found, double *slope, const double *hessian, const double *diagonal,
                  int64_t groups, int64_t rows, int64_t taps, double low, double high,
                  int32_t sweeps) {
    for (int64_t row = 0; row < groups * rows; row++) {
        const double *square = hessian + row / rows * taps * taps;
        const double *own = diagonal + row / rows * taps;
        double *restrict at = found + row * taps, *restrict down = slope + row * taps;
        for (int32_t sweep = 0, moves = 1; sweep < sweeps && moves; sweep++) {
            moves = 0;
            for (int64_t k = 0; k < taps; k++) {
                double change = on_grid(at[k] + down[k] / own[k], low, high) - at[k];
                if (change == 0.0) continue;
                const double *restrict line = square + k * taps;
                moves = 1;
                at[k] += change;
                for (int64_t j = 0; j < taps; j++) down[j] -= change * line[j];
            }
        }
    }
}
