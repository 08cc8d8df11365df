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

/* Signed integers in the order of the floats; -0.0 sorts below 0.0, NaN beyond infinity. */
static inline int32_t order_key(int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }

static inline int64_t lane_sum(const uint32_t *lanes) {
    return (int64_t)lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

/* Extremes of n float32 patterns as order keys, and counters of the upper 16 bits of |x|.
 * scratch: LANES * UPPER zeros, zero again on return. counts: UPPER. keys: {min, max}, in and out.
 */
void qs_count_ranges(const int32_t *bits, int64_t n, uint32_t *scratch, int64_t *counts,
                     int32_t *keys) {
    int32_t low = keys[0], high = keys[1];
    int32_t top = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t key = order_key(bits[i]);
        int32_t magnitude = bits[i] & 0x7fffffff;
        low = key < low ? key : low;
        high = key > high ? key : high;
        top = magnitude > top ? magnitude : top;
    }
    keys[0] = low;
    keys[1] = high;
    if (n < 2048) {
        for (int64_t i = 0; i < n; i++) counts[(bits[i] & 0x7fffffff) >> 16]++;
        return;
    }
    /* At most 2^30 values a turn, so that no 32-bit counter overflows. */
    for (int64_t start = 0; start < n; start += (int64_t)1 << 30) {
        int64_t stop = n - start > ((int64_t)1 << 30) ? start + ((int64_t)1 << 30) : n;
        int64_t i = start;
        for (; i + LANES <= stop; i += LANES)
            for (int lane = 0; lane < LANES; lane++)
                scratch[((bits[i + lane] & 0x7fffffff) >> 16) * LANES + lane]++;
        for (; i < stop; i++) scratch[((bits[i] & 0x7fffffff) >> 16) * LANES]++;
        int32_t used = (top >> 16) + 1;
        for (int32_t k = 0; k < used; k++) counts[k] += lane_sum(scratch + k * LANES);
        memset(scratch, 0, sizeof(uint32_t) * LANES * (size_t)used);
    }
}

/* counts[k] += values with edges[k] <= x < edges[k+1]; the last bin also takes x = edges[bins].
 * Values outside the edges go to the first or last bin.
 *
 * The guess (x - edges[0]) * inverse is off by less than 2e-7 * bins, rounding of the edges
 * included; so only values that close to an edge are compared with it. Where edges are subnormal
 * that bound fails, and every value is compared.
 * scratch: LANES * bins zeros, zero again on return.
 */
void qs_histogram(const float *x, int64_t n, const float *edges, int32_t bins, float inverse,
                  uint32_t *scratch, int64_t *counts) {
    int32_t index[VECTOR];
    float low = edges[0], last = (float)(bins - 1);
    float margin = edges[bins] < 1e-30f ? 1.0f : 5e-7f * (float)bins;
    int64_t since_sum = 0;
    for (int64_t start = 0; start < n; start += VECTOR) {
        int32_t size = n - start < VECTOR ? (int32_t)(n - start) : VECTOR;
        float block[VECTOR] = {0};
        memcpy(block, x + start, sizeof(float) * (size_t)size);
        int32_t near = 0;
        for (int32_t i = 0; i < VECTOR; i++) {
            float guess = (block[i] - low) * inverse;
            guess = guess > 0.0f ? guess : 0.0f;
            guess = guess < last ? guess : last;
            int32_t k = (int32_t)guess;
            float part = guess - (float)k;
            near |= !((part > margin) & (part < 1.0f - margin));
            index[i] = k;
        }
        if (near)
            for (int32_t i = 0; i < size; i++) {
                int32_t k = index[i];
                while (k > 0 && block[i] < edges[k]) k--;
                while (k < bins - 1 && block[i] >= edges[k + 1]) k++;
                index[i] = k;
            }
        for (int32_t i = 0; i < size; i++) scratch[index[i] * LANES + (i & (LANES - 1))]++;
        since_sum += size;
        if (since_sum > (int64_t)1 << 30 || start + VECTOR >= n) {
            for (int32_t k = 0; k < bins; k++)
                counts[k] += lane_sum(scratch + k * LANES);
            memset(scratch, 0, sizeof(uint32_t) * LANES * (size_t)bins);
            since_sum = 0;
        }
    }
}

/* Lower 16 bits of those |x| whose upper 16 bits are one of num (<= 255) sorted buckets; slot says
 * which. Returns how many; low and slot hold n entries.
 */
int64_t qs_collect_low(const int32_t *bits, int64_t n, const int32_t *buckets, int32_t num,
                       uint16_t *low, uint8_t *slot) {
    int64_t found = 0;
    if (num == 0) return 0;
    int32_t first = buckets[0] << 16;
    for (int64_t start = 0; start < n; start += BLOCK) {
        int32_t size = n - start < BLOCK ? (int32_t)(n - start) : BLOCK;
        const int32_t *block = bits + start;
        int32_t any = 0;
        for (int32_t i = 0; i < size; i++) any |= (block[i] & 0x7fffffff) >= first;
        if (!any) continue;
        for (int32_t i = 0; i < size; i++) {
            int32_t magnitude = block[i] & 0x7fffffff;
            if (magnitude < first) continue;
            for (int32_t b = 0; b < num; b++)
                if (magnitude >> 16 == buckets[b]) {
                    low[found] = (uint16_t)(magnitude & 0xffff);
                    slot[found++] = (uint8_t)b;
                    break;
                }
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

/* Sum over bins begin .. end-1, from prefix sums (prefix[k] = sum of the first k bins). */
static inline int64_t span_sum(const int64_t *prefix, int32_t begin, int32_t end) {
    return prefix[end] - prefix[begin];
}

/* P and Q of candidate i, smoothed (spec/quantize.md 6.5, 3-7), 2i+1 floats each. Returns 1, or 0
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
#define TEAM 4
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
