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
