/* Tile instructions of AMX: eight registers of up to 16 rows of 64 bytes.
 *
 * -DQK_EMULATED: the same in plain C, on a structure in place of the registers.
 */
#ifndef QK_AMX_TILES_H
#define QK_AMX_TILES_H

#include <stdint.h>
#include <string.h>

#define QK_TILE_MOST_ROWS 16
#define QK_TILE_ROW 64 /* bytes */

/* What ldtilecfg reads. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} qk_tile_shapes;

/* Shapes of all tiles: 0 to 3 are sums, 4 and 5 rows of activations, of `steps` times four bytes, 6 and 7 weights. */
static inline qk_tile_shapes qk_shapes_of(int64_t rows, int64_t steps)
{
    qk_tile_shapes s;
    memset(&s, 0, sizeof s);
    s.palette = 1;
    for (int i = 0; i < 8; i++) {
        s.rows[i] = (uint8_t)(i < 6 ? rows : steps);
        s.row_bytes[i] = (uint16_t)(i == 4 || i == 5 ? 4 * steps : QK_TILE_ROW);
    }
    return s;
}

#ifdef QK_EMULATED
typedef struct {
    qk_tile_shapes shapes;
    uint8_t row[8][QK_TILE_MOST_ROWS][QK_TILE_ROW];
} qk_amx;

static const int qk_has_tiles = 1;
static inline void qk_tiles_begin(qk_amx *t, int64_t rows, int64_t steps)
{
    memset(t, 0, sizeof *t);
    t->shapes = qk_shapes_of(rows, steps);
}
static inline void qk_tiles_end(qk_amx *t) { memset(t, 0xA5, sizeof *t); }
#define QK_EACH_TILE_ROW(t, n) for (int r = 0; r < (t)->shapes.rows[n]; r++)
static inline void qk_tile_zero(qk_amx *t, int n) { memset(t->row[n], 0, sizeof t->row[n]); }
static inline void qk_tile_load(qk_amx *t, int n, const void *p, int64_t stride)
{
    memset(t->row[n], 0, sizeof t->row[n]);
    QK_EACH_TILE_ROW(t, n) memcpy(t->row[n][r], (const uint8_t *)p + r * stride, t->shapes.row_bytes[n]);
}
static inline void qk_tile_store(const qk_amx *t, int n, void *p, int64_t stride)
{
    QK_EACH_TILE_ROW(t, n) memcpy((uint8_t *)p + r * stride, t->row[n][r], t->shapes.row_bytes[n]);
}
static inline void qk_tile_dot(qk_amx *t, int is_signed, int c, int a, int b)
{
    QK_EACH_TILE_ROW(t, c)
    {
        int32_t sums[16];
        memcpy(sums, t->row[c][r], 64);
        for (int k = 0; k < t->shapes.row_bytes[a]; k++) {
            const int32_t x = is_signed ? (int8_t)t->row[a][r][k] : t->row[a][r][k];
            const int8_t *const w = (const int8_t *)t->row[b][k / 4] + k % 4;
            for (int n = 0; n < 16; n++)
                sums[n] = (int32_t)((uint32_t)sums[n] + (uint32_t)(x * w[4 * n]));
        }
        memcpy(t->row[c][r], sums, 64);
    }
}
#define QK_TILE_ZERO(t, n) qk_tile_zero(t, n)
#define QK_TILE_LOAD(t, n, p, stride) qk_tile_load(t, n, p, stride)
#define QK_TILE_STORE(t, n, p, stride) qk_tile_store(t, n, p, stride)
#define QK_TILE_DOT(t, c, a, b) qk_tile_dot(t, 0, c, a, b)
#define QK_TILE_DOT_SIGNED(t, c, a, b) qk_tile_dot(t, 1, c, a, b)
#define QK_TILE_BARRIER() (void)0
#else
#include <cpuid.h>

/* Tiles are the processor's. Compilers keep asm volatile in order; the barrier writes what tile loads are to read. */
typedef char qk_amx;
static inline void qk_tiles_begin(qk_amx *t, int64_t rows, int64_t steps)
{
    const qk_tile_shapes shapes = qk_shapes_of(rows, steps);
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
    (void)t;
}
static inline void qk_tiles_end(qk_amx *t) /* or each switch to another thread saves 8 kB */
{
    __asm__ volatile("tilerelease");
    (void)t;
}
#define QK_TILE_ZERO(t, n) __asm__ volatile("tilezero %%tmm" #n : :)
#define QK_TILE_LOAD(t, n, p, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #n : : "r"(p), "r"((int64_t)(stride)))
#define QK_TILE_STORE(t, n, p, stride) \
    __asm__ volatile("tilestored %%tmm" #n ", (%0,%1,1)" : : "r"(p), "r"((int64_t)(stride)) : "memory")
#define QK_TILE_DOT(t, c, a, b) __asm__ volatile("tdpbusd %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)
#define QK_TILE_DOT_SIGNED(t, c, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)
#define QK_TILE_BARRIER() __asm__ volatile("" : : : "memory")

/* Linux gives a process tiles when it asks: arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA). Emulators and old kernels
 * refuse. */
static int qk_has_tiles;
extern long syscall(long number, ...);
__attribute__((constructor)) static void qk_ask_for_tiles(void)
{
    unsigned a, b, c, d;
    const int known = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 24 & 1) && (d >> 25 & 1);
#ifdef __linux__
    qk_has_tiles = known && syscall(158, 0x1023, 18) == 0;
#else
    (void)known;
#endif
}
#endif
#endif
