/* Loops of calibration. Each has a numpy twin beside it that gives the same bits; therefore floats
 * are added in the written order, no fused multiply-add, and the logarithm is our own.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define UPPER 32768 /* values of the upper 16 bits of a float32 pattern without its sign */
#define LANES 4     /* counters side by side: neighbouring values often fall into one bin */
#define BLOCK 512
#define VECTOR 32
#define TURN ((int64_t)1 << 30) /* values between two sums, so that no 32-bit counter overflows */

/* Signed integers in the order of the floats; -0.0 sorts below 0.0, NaN beyond infinity. */
static inline int32_t order_key(int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }

static inline int64_t lane_sum(const uint32_t *lanes) {
    return (int64_t)lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

/* counts[k] += the lanes of key k, which become zero, for first <= k < end. */
static void add_lanes(uint32_t *scratch, int32_t first, int32_t end, int64_t *counts) {
    for (int32_t k = first; k < end; k++) counts[k] += lane_sum(scratch + k * LANES);
    memset(scratch + first * LANES, 0, sizeof(uint32_t) * LANES * (size_t)(end - first));
}

/* Count size <= BLOCK keys, each in one of its lanes. */
static void count_block(const int32_t *keys, int32_t size, uint32_t *scratch) {
    uint32_t slots[BLOCK];
    for (int32_t i = 0; i < size; i++) slots[i] = (uint32_t)keys[i] * LANES + (i & (LANES - 1));
    for (int32_t i = 0; i < size; i++) scratch[slots[i]]++;
}

/* Extremes of n float32 patterns as order keys, and counters of the upper 16 bits of |x|.
 * scratch: LANES * UPPER zeros, zero again on return. counts: UPPER. keys: {min, max}, in and out.
 */
void qs_count_ranges(const int32_t *bits, int64_t n, uint32_t *scratch, int64_t *counts,
                     int32_t *keys) {
    for (int64_t start = 0, stop; start < n; start = stop) {
        stop = n - start < TURN ? n : start + TURN;
        int32_t low = keys[0], high = keys[1];
        /* Without zeros the upper halves span a few thousand counters: fewer to add and clear. */
        uint32_t least = UINT32_MAX, most = 0;
        int32_t upper[BLOCK];
        for (int64_t begin = start; begin < stop; begin += BLOCK) {
            const int32_t *block = bits + begin;
            int32_t size = stop - begin < BLOCK ? (int32_t)(stop - begin) : BLOCK;
            for (int32_t i = 0; i < size; i++) {
                int32_t key = order_key(block[i]);
                uint32_t magnitude = (uint32_t)block[i] & 0x7fffffff;
                uint32_t before = magnitude - 1; /* for 0 the largest */
                low = key < low ? key : low;
                high = key > high ? key : high;
                least = before < least ? before : least;
                most = magnitude > most ? magnitude : most;
                upper[i] = (int32_t)(magnitude >> 16);
            }
            count_block(upper, size, scratch);
        }
        keys[0] = low;
        keys[1] = high;
        add_lanes(scratch, 0, 1, counts);
        if (most) add_lanes(scratch, (int32_t)(least >> 16), (int32_t)(most >> 16) + 1, counts);
    }
}

/* The last k with edges[k] <= x; 0 where there is none. */
static int32_t bin_of(float x, const float *edges, int32_t bins) {
    int32_t low = 0, high = bins;
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        if (x >= edges[middle]) low = middle;
        else high = middle;
    }
    return low;
}

/* counts[k] += values with edges[k] <= x < edges[k+1]; the last bin also takes x = edges[bins].
 * Values outside the edges go to the first or last bin.
 *
 * The guess (x - edges[0]) * inverse is off by less than 2e-7 * bins, rounding of the edges
 * included; so only values that close to an edge are compared with it. The ends are no such edges:
 * often many values are max|x|. Where edges are subnormal or x - edges[0] may overflow, that bound
 * fails, and every value is looked up among all edges.
 * scratch: LANES * bins zeros, zero again on return.
 */
void qs_histogram(const float *x, int64_t n, const float *edges, int32_t bins, float inverse,
                  uint32_t *scratch, int64_t *counts) {
    int32_t index[BLOCK];
    uint8_t near[BLOCK] = {0};
    float low = edges[0], least = 0.5f, most = (float)bins - 0.5f;
    int sound = edges[bins] > 1e-30f && edges[bins] < 1e38f;
    float margin = sound ? 5e-7f * (float)bins : 1.0f;
    for (int64_t start = 0, stop; start < n; start = stop) {
        stop = n - start < TURN ? n : start + TURN;
        int32_t first = bins, end = 0;
        for (int64_t begin = start; begin < stop; begin += BLOCK) {
            const float *block = x + begin;
            int32_t size = stop - begin < BLOCK ? (int32_t)(stop - begin) : BLOCK;
            for (int32_t i = 0; i < size; i++) {
                float guess = (block[i] - low) * inverse;
                guess = guess > least ? guess : least;
                guess = guess < most ? guess : most;
                int32_t k = (int32_t)guess;
                float part = guess - (float)k;
                near[i] = !((part > margin) & (part < 1.0f - margin));
                index[i] = k;
            }
            for (int32_t word = 0; word < size; word += 8) {
                uint64_t any;
                memcpy(&any, near + word, 8);
                if (!any) continue;
                for (int32_t i = word; i < word + 8 && i < size; i++) {
                    if (!near[i]) continue;
                    int32_t k = index[i];
                    if (sound) {
                        while (k > 0 && block[i] < edges[k]) k--;
                        while (k < bins - 1 && block[i] >= edges[k + 1]) k++;
                    } else {
                        k = bin_of(block[i], edges, bins);
                    }
                    index[i] = k;
                }
            }
            for (int32_t i = 0; i < size; i++) {
                first = index[i] < first ? index[i] : first;
                end = index[i] > end ? index[i] : end;
            }
            count_block(index, size, scratch);
        }
        add_lanes(scratch, first, end + 1, counts);
    }
}

/* Lower 16 bits of those |x| whose upper 16 bits are one of num (<= 255) sorted buckets; slot says
 * which, and times how often, since rows of one value such as max|x| are one entry. Returns how many
 * entries; low, slot and times hold n.
 */
int64_t qs_collect_low(const int32_t *bits, int64_t n, const int32_t *buckets, int32_t num,
                       uint16_t *low, uint8_t *slot, int32_t *times) {
    int64_t found = 0, latest[255];
    if (num == 0) return 0;
    for (int32_t b = 0; b < num; b++) latest[b] = -1;
    int32_t first = buckets[0] << 16;
    for (int64_t start = 0; start < n; start += VECTOR) {
        int32_t size = n - start < VECTOR ? (int32_t)(n - start) : VECTOR;
        const int32_t *block = bits + start;
        int32_t top = 0;
        for (int32_t i = 0; i < size; i++) {
            int32_t magnitude = block[i] & 0x7fffffff;
            top = magnitude > top ? magnitude : top;
        }
        if (top < first) continue;
        for (int32_t i = 0; i < size; i++) {
            int32_t magnitude = block[i] & 0x7fffffff;
            if (magnitude < first) continue;
            int32_t b = 0;
            while (b < num && magnitude >> 16 != buckets[b]) b++;
            if (b == num) continue;
            uint16_t key = (uint16_t)(magnitude & 0xffff);
            if (latest[b] >= 0 && low[latest[b]] == key && times[latest[b]] < INT32_MAX) {
                times[latest[b]]++;
                continue;
            }
            low[found] = key;
            slot[found] = (uint8_t)b;
            times[found] = 1;
            latest[b] = found++;
        }
    }
    return found;
}

/* Natural logarithm of a positive normal double: x = m * 2^e with m in [sqrt(1/2), sqrt(2)),
 * ln m = 2 artanh((m-1)/(m+1)) as a series. Only + - * / in this order, as in numpy_kernels.py.
 */
static inline double log_series(double x) {
    int64_t bits;
    memcpy(&bits, &x, 8);
    int64_t exponent = (bits >> 52) - 1022;
    int64_t mantissa_bits = (bits & 0x000fffffffffffffLL) | 0x3fe0000000000000LL;
    double m;
    memcpy(&m, &mantissa_bits, 8);
    int64_t small = m < 0.7071067811865476;
    m = small ? m + m : m;
    double e = (double)(exponent - small);
    double s = (m - 1.0) / (m + 1.0);
    double z = s * s;
    double sum = 1.0 / 21.0;
    sum = sum * z + 1.0 / 19.0;
    sum = sum * z + 1.0 / 17.0;
    sum = sum * z + 1.0 / 15.0;
    sum = sum * z + 1.0 / 13.0;
    sum = sum * z + 1.0 / 11.0;
    sum = sum * z + 1.0 / 9.0;
    sum = sum * z + 1.0 / 7.0;
    sum = sum * z + 1.0 / 5.0;
    sum = sum * z + 1.0 / 3.0;
    sum = sum * z + 1.0;
    return e * 0.6931471805599453 + (s + s) * sum;
}

/* out[c] = for candidate c the sum of P' ln Q' over the filled bins of all groups but the first and
 * the last; P' = P - p_less, Q' = Q - q_less. prefix and filled hold whole numbers. Groups of
 * neighbouring candidates are equally wide and begin one bin earlier.
 * work: 3 * num doubles.
 */
#define TERMS 8192 /* summed at a time, as the twin does */
void qs_group_terms(const double *prefix, const double *filled, int32_t bins,
                    const int32_t *candidates, int32_t num, int32_t levels, const double *p_less,
                    const double *q_less, double *work, double *out) {
    double *p = work, *q = p + num, *sums = q + num;
    for (int32_t start = 0, stop; start < num; start = stop) {
        int32_t width = (2 * candidates[start] + 1) / levels;
        for (stop = start; stop < num && (2 * candidates[stop] + 1) / levels == width;) stop++;
        int32_t some = stop - start, rows = TERMS / some > 1 ? TERMS / some : 1;
        /* The last candidate comes first: it begins at the lowest bin. */
        for (int32_t k = 0; k < some; k++) {
            p[k] = p_less[stop - 1 - k];
            q[k] = q_less[stop - 1 - k];
        }
        for (int32_t first = 1; first < levels - 1; first += rows) {
            int32_t end = first + rows < levels - 1 ? first + rows : levels - 1;
            for (int32_t k = 0; k < some; k++) sums[k] = 0.0;
            for (int32_t group = first; group < end; group++) {
                int32_t begin = bins / 2 - candidates[stop - 1] + group * width;
                const double *low = prefix + begin, *high = low + width;
                const double *empty = filled + begin, *full = empty + width;
                if (full[some - 1] == empty[0]) continue; /* no bin is filled */
                for (int32_t k = 0; k < some; k++) {
                    double mass = high[k] - low[k], count = full[k] - empty[k];
                    double value = mass / (count > 1.0 ? count : 1.0) - q[k];
                    value = value > 1e-300 ? value : 1e-300;
                    sums[k] += (mass - p[k] * count) * log_series(value);
                }
            }
            for (int32_t k = 0; k < some; k++) out[stop - 1 - k] += sums[k];
        }
    }
}

/* Sum over bins begin .. end-1, from prefix sums (prefix[k] = sum of the first k bins). */
static inline int64_t span_sum(const int64_t *prefix, int32_t begin, int32_t end) {
    return prefix[end] - prefix[begin];
}

/* P and Q of candidate i, smoothed, 2i+1 floats each. Returns 1, or 0
 * where a distribution is malformed; then *divergence is the answer.
 */
static int smoothed_pair(const int64_t *hist, const int64_t *prefix, const int64_t *filled,
                         int32_t bins, int32_t i, int32_t levels, float *restrict p,
                         float *restrict q, float *divergence) {
    int32_t zero = bins / 2, a = zero - i, b = zero + i + 1, n = 2 * i + 1;
    for (int32_t k = 0; k < n; k++) p[k] = (float)hist[a + k];
    p[0] = (float)prefix[a + 1];
    p[n - 1] = (float)(hist[b - 1] + span_sum(prefix, b, bins));
    int32_t width = n / levels;
    for (int32_t j = 0; j < levels; j++) {
        int32_t begin = j * width, end = j == levels - 1 ? n : begin + width;
        int32_t inner = j == 0 ? 1 : begin; /* inner[0] counts as 0 */
        int64_t sum = span_sum(prefix, a + inner, a + end);
        int64_t nonzero = span_sum(filled, a + inner, a + end);
        float value = nonzero ? (float)sum / (float)nonzero : 0.0f;
        for (int32_t k = begin; k < end; k++) q[k] = p[k] != 0.0f ? value : 0.0f;
    }
    int32_t p_filled = 0, q_filled = 0;
    for (int32_t k = 0; k < n; k++) {
        p_filled += p[k] != 0.0f;
        q_filled += q[k] != 0.0f;
    }
    const float eps = 0.0001f;
    *divergence = INFINITY;
    if (q_filled == 0) return 0;
    float q_less = eps * (float)(n - q_filled) / (float)q_filled;
    if (q_less >= 1.0f) return 0;
    *divergence = 0.0f;
    if (p_filled == 0) return 0;
    float p_less = eps * (float)(n - p_filled) / (float)p_filled;
    if (p_less >= 1.0f) return 0;
    for (int32_t k = 0; k < n; k++) {
        p[k] = p[k] != 0.0f ? p[k] - p_less : eps;
        q[k] = q[k] != 0.0f ? q[k] - q_less : eps;
    }
    return 1;
}

/* Left-to-right float32 sums of TEAM rows; row r has sizes[r] values. A single such sum waits for
 * its own additions, several side by side do not.
 */
#define TEAM 8
static void row_sums(float *const rows[TEAM], const int32_t sizes[TEAM], float sums[TEAM]) {
    int32_t common = sizes[0];
    for (int r = 1; r < TEAM; r++) common = sizes[r] < common ? sizes[r] : common;
    float total[TEAM] = {0};
    for (int32_t k = 0; k < common; k++)
        for (int r = 0; r < TEAM; r++) total[r] += rows[r][k];
    for (int r = 0; r < TEAM; r++) {
        for (int32_t k = common; k < sizes[r]; k++) total[r] += rows[r][k];
        sums[r] = total[r];
    }
}

/* out[c] = divergence of candidates[c] in float32, every sum left to right.
 * work: 2 * TEAM * bins floats.
 */
void qs_divergences_float32(const int64_t *hist, const int64_t *prefix, const int64_t *filled,
                            int32_t bins, const int32_t *candidates, int32_t num, int32_t levels,
                            float *work, float *out) {
    float *p[TEAM], *q[TEAM], p_sum[TEAM], q_sum[TEAM], divergence[TEAM];
    for (int r = 0; r < TEAM; r++) {
        p[r] = work + (size_t)(2 * r) * bins;
        q[r] = p[r] + bins;
    }
    for (int32_t start = 0; start < num; start += TEAM) {
        int team = num - start < TEAM ? num - start : TEAM;
        int32_t sizes[TEAM] = {0};
        int sound[TEAM] = {0};
        for (int r = 0; r < team; r++) {
            int32_t i = candidates[start + r];
            sizes[r] = 2 * i + 1;
            sound[r] =
                smoothed_pair(hist, prefix, filled, bins, i, levels, p[r], q[r], out + start + r);
        }
        row_sums(p, sizes, p_sum);
        row_sums(q, sizes, q_sum);
        for (int r = 0; r < team; r++) {
            float *restrict top = p[r];
            const float *restrict bottom = q[r];
            float whole = p_sum[r], base = q_sum[r];
            if (!sound[r]) continue;
            for (int32_t k = 0; k < sizes[r]; k++) {
                float share = top[k] / whole;
                float ratio = share / (bottom[k] / base);
                top[k] = share * (float)log_series((double)ratio);
            }
        }
        row_sums(p, sizes, divergence);
        for (int r = 0; r < team; r++)
            if (sound[r]) out[start + r] = divergence[r];
    }
}
