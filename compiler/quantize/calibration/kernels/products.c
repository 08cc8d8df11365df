/* Loops around products of what weights read: their sums over the data, and rounding weights by
 * them. Each has a numpy twin that gives the same bits: sums of whole numbers are exact in any order,
 * other operations stand in the order of the twin, with no fused multiply-add.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

/* Vectors of GROUP channels; the compiler splits them where registers are narrower. */
#define GROUP 8
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
    int32_t padded_height, padded_width;   /* with all zeros around it */
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

/* sums[s * (columns + 1) + t], s and t columns of the window: the products of a[p + s] and
 * b[p + t] over all columns p of the output; t = columns stands for a[p + s] alone. Neighbouring
 * sums of one distance t - s differ in their ends only. Whole numbers below 2^53: all exact.
 */
static void row_products(const Group *a, const Group *b, const Window *w, int same, Group *sums) {
    int32_t columns = w->columns, stride = w->column_stride, dilation = w->column_dilation;
    int32_t reach = stride * w->out_width;
    for (int32_t s = 0; s < columns; s++) {
        for (int32_t t = same ? s : 0; t <= columns - !same; t++) {
            int alone = t == columns;
            Group *sum = sums + s * (columns + 1) + t;
            if (dilation == 1 && s >= stride && (alone || t >= stride)) {
                const Group *before = sum - stride * (columns + 1) - (alone ? 0 : stride);
                const Group *p = a + s - stride, *q = b + t - stride;
                *sum = alone ? *before - p[0] + p[reach]
                             : *before - p[0] * q[0] + p[reach] * q[reach];
                continue;
            }
            const Group *p = a + s * dilation, *q = b + t * dilation;
            Group even = {0}, odd = {0};
            int32_t k = 0;
            if (alone) {
                for (; k < w->out_width; k++) even += p[(int64_t)k * stride];
            } else {
                for (; k + 1 < w->out_width; k += 2) {
                    int64_t here = (int64_t)k * stride, next = here + stride;
                    even += p[here] * q[here];
                    odd += p[next] * q[next];
                }
                if (k < w->out_width) even += p[(int64_t)k * stride] * q[(int64_t)k * stride];
            }
            *sum = even + odd;
        }
    }
}

/* Sum over the rows of the output of one entry of row_products, for window row r. */
static Group over_rows(const Group *entry, int64_t width, const Window *w, int32_t r,
                       const Group *earlier) {
    int32_t stride = w->row_stride;
    if (w->row_dilation == 1 && r >= stride)
        return earlier[r - stride] - entry[(r - stride) * width] +
               entry[(int64_t)(r - stride + stride * w->out_height) * width];
    Group total = {0};
    for (int32_t p = 0; p < w->out_height; p++)
        total += entry[(int64_t)(p * stride + r * w->row_dilation) * width];
    return total;
}

/* products[c][k][l] = sum over positions of all images of what taps k and l read of channel c, and
 * sums[c][k] of tap k, in whole steps of unit[c]. x: (images, channels, height, width).
 * scratch: GROUP * (padded_height * (padded_width + columns * (columns + 1)) + rows +
 * taps * (taps + 1)) doubles.
 * Returns whether all steps are within limit; if not, the sums are not defined.
 */
int32_t qs_window_products(const float *x, int32_t images, int32_t channels, const double *unit,
                           double limit, const Window *w, double *scratch, int64_t *products,
                           int64_t *sums) {
    int32_t rows = w->rows, columns = w->columns, taps = rows * columns;
    int64_t line = w->padded_width, width = columns * (columns + 1);
    int64_t image_size = (int64_t)channels * w->height * w->width;
    Group *block = (Group *)scratch, *found = block + line * w->padded_height;
    Group *totals = found + width * w->padded_height, *all = totals + rows;
    for (int32_t first = 0; first < channels; first += GROUP) {
        /* all: (taps, taps + 1), the last column for the sums */
        memset(all, 0, sizeof(Group) * (size_t)taps * (taps + 1));
        for (int32_t image = 0; image < images; image++) {
            if (!gather_group(x + image * image_size, channels, first, unit, limit, w, block))
                return 0;
            for (int32_t down = 0; down < rows; down++) {
                int32_t below = down * w->row_dilation;
                for (int32_t r = 0; r + below < w->padded_height; r++)
                    row_products(block + r * line, block + (r + below) * line, w, down == 0,
                                 found + r * width);
                for (int32_t s = 0; s < columns; s++)
                    for (int32_t t = down ? 0 : s; t <= columns - (down > 0); t++)
                        for (int32_t r = 0; r + down < rows; r++) {
                            const Group *entry = found + s * (columns + 1) + t;
                            totals[r] = over_rows(entry, width, w, r, totals);
                            int32_t l = t == columns ? taps : (r + down) * columns + t;
                            all[(r * columns + s) * (taps + 1) + l] += totals[r];
                        }
            }
        }
        for (int32_t c = 0; c < GROUP && first + c < channels; c++) {
            int64_t *own = products + (int64_t)(first + c) * taps * taps;
            for (int32_t k = 0; k < taps; k++) {
                const Group *of_tap = all + k * (taps + 1);
                sums[(int64_t)(first + c) * taps + k] = (int64_t)of_tap[taps][c];
                for (int32_t l = k; l < taps; l++)
                    own[k * taps + l] = own[l * taps + k] = (int64_t)of_tap[l][c];
            }
        }
    }
    return 1;
}

/* The nearest whole number within limit, halves away from zero. */
static inline double on_grid(double value, double limit) {
    double whole = trunc(value + copysign(0.5, value));
    whole = whole > -limit ? whole : -limit;
    return whole < limit ? whole : limit;
}

/* Round a block of columns, one after the other, the later ones making up for what was rounded.
 * values, found, errors: (groups, rows, width); factor: (groups, width, width), upper triangular.
 */
void qs_round_columns(double *values, const double *factor, int64_t groups, int64_t rows,
                      int64_t width, double limit, double *found, double *errors) {
    for (int64_t row = 0; row < groups * rows; row++) {
        const double *upper = factor + row / rows * width * width;
        double *left = values + row * width, *to = found + row * width, *lost = errors + row * width;
        for (int64_t k = 0; k < width; k++) {
            const double *line = upper + k * width;
            to[k] = on_grid(left[k], limit);
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
                  int64_t groups, int64_t rows, int64_t taps, double limit, int32_t sweeps) {
    for (int64_t row = 0; row < groups * rows; row++) {
        const double *square = hessian + row / rows * taps * taps;
        const double *own = diagonal + row / rows * taps;
        double *restrict at = found + row * taps, *restrict down = slope + row * taps;
        for (int32_t sweep = 0, moves = 1; sweep < sweeps && moves; sweep++) {
            moves = 0;
            for (int64_t k = 0; k < taps; k++) {
                double change = on_grid(at[k] + down[k] / own[k], limit) - at[k];
                if (change == 0.0) continue;
                const double *restrict line = square + k * taps;
                moves = 1;
                at[k] += change;
                for (int64_t j = 0; j < taps; j++) down[j] -= change * line[j];
            }
        }
    }
}
