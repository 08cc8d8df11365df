/* The step table: planning writes it, the kernels read it.
 *
 * A step is QK_FIELDS int64. Field 0 is the kind. Offsets are bytes from the start of the arena
 * (activations) or of the blob (constants); both end with QK_SLACK bytes that kernels may read
 * beyond the last element but never write. Bytes of 8-bit tensors are carrier bytes: an int8 x is
 * stored as x + 128, a uint8 as it is. python: compiler/targets/engine/steps.py holds the same names.
 */
#ifndef QK_STEP_H
#define QK_STEP_H

#include <stdint.h>

#define QK_FIELDS 40
#define QK_SLACK 256

enum { QK_QUANTIZE, QK_DEQUANTIZE, QK_GEMM, QK_DEPTHWISE, QK_ELEMENTWISE, QK_POOL, QK_COPY, QK_FILL,
       QK_LOOKUP, QK_SOFTMAX, QK_STANDARDIZE, QK_PACK, QK_WIDE, QK_REDUCE, QK_GATHER, QK_TAKE,
       QK_LOOP, QK_PART, QK_REPEAT, QK_SCATTER, QK_KINDS };

/* Element types of activations. QK_S64: copies, inputs, outputs, and the steps of general.h. A float32 is
 * QK_S32, its bits. */
enum { QK_U8, QK_S16, QK_S32, QK_S64 };

static inline int64_t qk_isqrt(int64_t v) /* floor of the root of 0 <= v < 2^62 */
{
    int64_t root = (int64_t)__builtin_sqrt((double)v);
    root -= root * root > v;
    root += (root + 1) * (root + 1) <= v;
    return root;
}

static inline int64_t qk_size_of(int64_t type)
{
    return type == QK_U8 ? 1 : type == QK_S16 ? 2 : type == QK_S32 ? 4 : 8;
}

/* How an int32 becomes an output: as it is, times a fixed-point factor, by a shift that rounds halves
 * up, or to even, or times a float32 factor, rounded once to the nearest integer. Planning chooses
 * QK_REAL only where it gives the integers of the fixed-point factor. */
enum { QK_PLAIN, QK_FACTOR, QK_SHIFT, QK_EVEN, QK_REAL };

/* 1.5 * 2^23 and its bits. A float32 of that size has no place behind the point: a sum with it is
 * rounded to an integer, and its bits are these bits plus that integer. */
#define QK_REAL_ONE 12582912.0f
#define QK_REAL_BITS 0x4B400000

typedef struct {
    int64_t kind;             /* QK_PLAIN .. QK_REAL */
    int64_t left;             /* shifted left by this first */
    int64_t mult, add, shift; /* blob: int32, int64, int32 a channel. QK_SHIFT and QK_EVEN: mult is added;
                                 QK_EVEN: add is int32, 1 where bits are shifted out, else 0;
                                 QK_REAL: mult is float32, add itself is added at the end */
    int64_t low, high;        /* clip, in carrier bytes where the output is QK_U8 */
    int64_t by_channel;       /* 1: low and high are places in the blob, int32 a channel; not for QK_U8 */
    int64_t type;             /* of the output */
} qk_requantize;

/* Weights of a product: any bytes, those of which no pair leaves 16 bits, two in a byte, or bytes that are widened
 * when a row is multiplied by them: the last two for products of one row. */
enum { QK_ANY_WEIGHTS, QK_NARROW_PAIRS, QK_FOUR_BITS, QK_BYTES_OF_ROW };

/* How rows come to the tiles of tiled.h: those of the whole image at equal distances, those of a line, copies. */
enum { QK_NO_ROWS, QK_BY_RUN, QK_BY_LINE, QK_BY_COPY };

/* out[g][y][x][n] = requantize(bias[n] + sum of in * weight); rows are pixels. */
typedef struct {
    int64_t kind, source, in_row, in_pixel, in_group;  /* address of the first window, strides */
    int64_t type;                                  /* of the input: QK_U8 or QK_S16 */
    int64_t out, out_row, out_pixel, out_group;
    int64_t height, width, groups, columns;        /* of the output; columns of one group */
    int64_t seg_y, seg_x, seg_row, seg_pixel;      /* a window is seg_y x seg_x runs of elements */
    int64_t seg_items;                             /* of one run; padded to QK_UNIT in the weights */
    int64_t weight, weight_group, weight_in_arena; /* offset, bytes of a group, 1 for the arena */
    int64_t narrow;                                /* QK_ANY_WEIGHTS .. QK_BYTES_OF_ROW: dot steps of 4 bytes but for the first */
    int64_t wide;                                  /* the last dot steps of QK_NARROW_PAIRS, of any weights */
    int64_t crossed;                               /* 1: dot steps of whole vectors are taken two at a time */
    int64_t bias, bias_in_arena;                   /* int32, columns padded to 16 a group */
    qk_requantize rq;
    int64_t scratch;                               /* arena */
    int64_t tile, rows_by, block;                  /* dot steps of a tile, 0 where there are none; tiles of rows of a block */
} qk_gemm_step;

/* Depthwise: channel c of the output reads channel c of the input. */
typedef struct {
    int64_t kind, source, in_row, in_pixel, type;  /* of the input: QK_U8 or QK_S16 */
    int64_t out, out_row, out_pixel;
    int64_t height, width, channels;
    int64_t kernel_y, kernel_x, stride_y, stride_x, dilation_y, dilation_x;
    int64_t together;                              /* output rows of a pass, 1 to 4 */
    int64_t block;                                 /* 1, or lanes of the registers that are filled */
    int64_t weight, bias;
    qk_requantize rq;
    int64_t scratch;
} qk_depthwise_step;

/* A program of micro operations over d0 x d1 x columns; see elementwise.h. */
typedef struct {
    int64_t kind, program, count; /* blob: count x QK_OP_FIELDS int64 */
    int64_t d0, d1, columns;
    int64_t first_0, first_1, first_column; /* 0, but in the share of a lane */
} qk_elementwise_step;

#define QK_OP_FIELDS 12
enum { QK_LOAD, QK_CONSTANT, QK_ADD, QK_SUB, QK_MUL, QK_MIN, QK_MAX, QK_RESCALE, QK_ROUND_SHIFT,
       QK_CLIP, QK_STORE, QK_LEFT, QK_TO_EVEN, QK_TIMES, QK_TABLE, QK_OPS };
#define QK_SLOTS 8
typedef struct {
    int64_t op, to, a, b;       /* slots */
    int64_t p0, p1, p2, p3;     /* see elementwise.h */
    int64_t scaled, factors, low, high;
} qk_op;

enum { QK_POOL_MAX, QK_POOL_AVERAGE };
typedef struct {
    int64_t kind, how, type;    /* of the input; a maximum has the same, an average is int32 */
    int64_t source, in_row, in_pixel, in_height, in_width;
    int64_t out, out_row, out_pixel, height, width, channels;
    int64_t kernel_y, kernel_x, stride_y, stride_x, dilation_y, dilation_x, top, left;
    int64_t zero, factor, count; /* average: trunc(sum(x - zero) * factor / count); 0: the taps */
} qk_pool_step;

#define QK_DIMS 6
typedef struct {
    int64_t kind, source, out, bytes; /* of an element run */
    int64_t size[QK_DIMS], in_stride[QK_DIMS], out_stride[QK_DIMS];
    int64_t in_blob;
} qk_copy_step;

typedef struct {
    int64_t kind, out, height, row_bytes, row_pitch, top, bottom, left, right, value;
} qk_fill_step;

#define QK_LOOKUP_DIMS 2
/* Rows: out = table[in & (entries - 1)]: the entries of a table lie where the last bits of an index say. */
typedef struct {
    int64_t kind, source, out, columns, in_type, type;
    int64_t size[QK_LOOKUP_DIMS], in_stride[QK_LOOKUP_DIMS], out_stride[QK_LOOKUP_DIMS];
    int64_t table, entries; /* a power of two: 256 of bytes, at most 65,536 of others */
    int64_t lined, lines;   /* 1: the entries are bytes, and the lines of the blob give the same */
} qk_lookup_step;

/* A table of 256 << bits bytes, bits up to 4, as a line for each 1 << bits entries. The entry of x is
 * base[place] + (start[place] + slope[place] * rest >> 8): rest are the last bits of x, times 16 >> bits, and
 * place the eight in front of them. In one place, `place`, entries behind a rest of `last` are `more` larger. */
typedef struct {
    uint8_t base[256], start[256];
    int8_t slope[256];
    uint8_t bits, place, last, more;
} qk_line_table;

/* in_bytes: entries are below 2^24, and `bytes` are tables of their low, middle and high bytes. */
typedef struct {
    int64_t kind, source, out, rows, columns, in_stride, out_stride; /* carrier bytes in, int32 out */
    int64_t in_type, table, entries, in_bytes, bytes, out_bits;
    int64_t together, scratch; /* rows at a time; the scratch holds their entries and 4 * (64 + columns) bytes */
} qk_softmax_step;

typedef struct {
    int64_t kind, source, out, rows, columns, in_stride, out_stride;
    int64_t in_type, zero, epsilon, root_bits, out_bits, centred, most; /* most: no |out| is larger */
} qk_standardize_step;

/* The right operand of a product of two activations, packed like weights. */
typedef struct {
    int64_t kind, source, in_group, stride_k, stride_n, zero, groups, k, columns; /* value = byte - zero */
    int64_t weight, weight_group, bias, comp;   /* arena; bias = -comp * column sum */
    int64_t scratch, tile;
} qk_pack_step;

/* A program over int64, for every elementwise operator; see general.h. */
typedef struct {
    int64_t kind, program, count; /* blob: count x QK_WIDE_FIELDS int64 */
    int64_t size[QK_DIMS];
} qk_wide_step;

#define QK_WIDE_FIELDS 14
enum { QK_WIDE_LOAD, QK_WIDE_STORE, QK_WIDE_CONSTANT, QK_WIDE_ADD, QK_WIDE_SUB, QK_WIDE_MUL, QK_WIDE_MIN,
       QK_WIDE_MAX, QK_WIDE_AND, QK_WIDE_OR, QK_WIDE_LEFT, QK_WIDE_RIGHT, QK_WIDE_LESS,
       QK_WIDE_EQUAL, QK_WIDE_FLOORED, QK_WIDE_ROOT, QK_WIDE_SELECT, QK_WIDE_WRAP,
       QK_WIDE_FADD, QK_WIDE_FSUB, QK_WIDE_FMUL, QK_WIDE_FMIN, QK_WIDE_FMAX, QK_WIDE_FROUND, QK_WIDE_FEVEN,
       QK_WIDE_TO_REAL, QK_WIDE_TO_INT, QK_WIDE_OPS };
#define QK_WIDE_SLOTS 32
typedef struct {
    int64_t op, to, a, b, c;    /* slots */
    int64_t p0, p1, p2;         /* see general.h */
    int64_t stride[QK_DIMS];    /* bytes */
} qk_wide_op;

/* The last `reduced` axes are reduced; out has no strides along them. A DOT sums products with `other`;
 * types + 16 lie in the blob. */
enum { QK_REDUCE_SUM, QK_REDUCE_MAX, QK_REDUCE_ARGMAX, QK_REDUCE_DOT, QK_REDUCE_HOWS };
typedef struct {
    int64_t kind, how, source, type, zero, out, out_type, out_zero, reduced, last;
    int64_t other, other_type, other_zero;
    int64_t size[QK_DIMS], in_stride[QK_DIMS], out_stride[QK_DIMS], other_stride[QK_DIMS];
} qk_reduce_step;

/* Runs of bytes in an order that the blob holds: offsets from source, int64. */
typedef struct {
    int64_t kind, source, span, out, bytes, count, offsets;
} qk_gather_step;

/* out[o][i] = data[o][clip(index[o * index_group + i] - first)], rows of bytes; o over outer. */
typedef struct {
    int64_t kind, index, index_type, index_zero, index_group, first, count, wraps;
    int64_t source, in_blob, rows, bytes, outer, out;
} qk_take_step;

/* Rows of `columns` elements: out[clip(index[i])] is joined with source[i], for each i in turn. The source has the
 * type and the zero of out; of sums in 32 bits any type of up to 32 bits, without its zero. */
enum { QK_SCATTER_UPDATE, QK_SCATTER_ADD, QK_SCATTER_MAX, QK_SCATTER_MIN, QK_SCATTER_HOWS };
typedef struct {
    int64_t kind, how, index, index_type, index_zero, count;
    int64_t source, type, zero, columns, out, out_type, rows;
} qk_scatter_step;

typedef struct {
    int64_t kind, input, rows, row_items;        /* planes x rows floats of io[input] */
    int64_t planes, out, out_plane, out_row, out_item; /* strides in bytes */
    int64_t scale, per_plane;                        /* blob: float32 */
    int64_t low, high, zero, none, type;             /* none: what NaN gives before zero is added */
    int64_t raw;                                     /* 1: the input holds integers of this type */
    int64_t first_row, rows_left;                    /* 0, but in the share of a lane */
} qk_quantize_step;

typedef struct {
    int64_t kind, output, source, type, zero, count, scale, per_item; /* float32 = x * scale */
    int64_t raw;
} qk_dequantize_step;

/* A loop: the steps behind QK_LOOP up to QK_REPEAT, `rows` behind it, run `count` times. A part is a copy of
 * one of `count` runs of bytes, one behind the other: that of the turn, or of the turn counted from the end. */
typedef struct {
    int64_t kind;
} qk_loop_step;

typedef struct {
    int64_t kind, source, out, bytes, count, takes, back; /* takes: the runs are the source, else out */
} qk_part_step;

typedef struct {
    int64_t kind, rows, count;
} qk_repeat_step;

typedef union {
    int64_t field[QK_FIELDS];
    qk_gemm_step gemm;
    qk_depthwise_step depthwise;
    qk_elementwise_step elementwise;
    qk_pool_step pool;
    qk_copy_step copy;
    qk_fill_step fill;
    qk_lookup_step lookup;
    qk_softmax_step softmax;
    qk_standardize_step standardize;
    qk_pack_step pack;
    qk_wide_step wide;
    qk_reduce_step reduce;
    qk_gather_step gather;
    qk_take_step take;
    qk_scatter_step scatter;
    qk_part_step part;
    qk_repeat_step repeat;
    qk_quantize_step quantize;
    qk_dequantize_step dequantize;
} qk_step;

/* What one run works on. */
typedef struct {
    uint8_t *arena;
    const uint8_t *blob;
    const uint8_t *const *inputs;
    uint8_t *const *outputs;
    const int64_t *input_bytes, *output_bytes; /* of one sample */
    int64_t sample;
} qk_memory;

#endif
