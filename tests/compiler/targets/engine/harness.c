/* Runs plans from a file, in one thread and in three, and compares their outputs: for instruction sets under an emulator, and
 * for sanitizers. The memory of every run is exactly as large as its step table says.
 *
 * The file holds int64: plans, then per plan steps, arena, blob, inputs, outputs, the bytes of each
 * input and output, and the arrays themselves: rows, blob, inputs, expected outputs.
 */
#include "kernels.c"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static uint8_t *aligned_bytes(int64_t size)
{
    void *made = 0;
    if (posix_memalign(&made, 64, (size_t)(size + 1)))
        exit(3);
    return (uint8_t *)made;
}

static uint8_t *read_bytes(FILE *file, int64_t size, int64_t slack)
{
    uint8_t *made = aligned_bytes(size + slack);
    memset(made, 0, (size_t)(size + slack));
    if (fread(made, 1, (size_t)size, file) != (size_t)size)
        exit(4);
    return made;
}

static int64_t read_number(FILE *file)
{
    int64_t number;
    if (fread(&number, 8, 1, file) != 1)
        exit(5);
    return number;
}

static void *run_lane(void *call)
{
    qk_run_call((const qk_call *)call);
    return 0;
}

/* One sample by threads together, each with scratch of its own. */
static void run_together(const qk_call *call)
{
    enum { lanes = 3 };
    const int64_t pitch = (call->arena_bytes + 63) / 64 * 64 + QK_SLACK;
    uint8_t *arena = aligned_bytes(lanes * pitch);
    size_t come = 0;
    qk_call calls[lanes];
    pthread_t threads[lanes];
    memset(arena, 0xA5, (size_t)(lanes * pitch));
    for (int lane = 0; lane < lanes; lane++) {
        calls[lane] = *call;
        calls[lane].arena = arena;
        calls[lane].lane = lane;
        calls[lane].lanes = lanes;
        calls[lane].pitch = pitch;
        calls[lane].come = &come;
        if (pthread_create(&threads[lane], 0, run_lane, &calls[lane]))
            exit(6);
    }
    for (int lane = 0; lane < lanes; lane++)
        pthread_join(threads[lane], 0);
    free(arena);
}

int main(int argc, char **argv)
{
    FILE *file = argc > 1 ? fopen(argv[1], "rb") : 0;
    int64_t wrong = 0;
    if (!file)
        return 2;
    for (int64_t plans = read_number(file); plans > 0; plans--) {
        int64_t head[5], in_bytes[64], out_bytes[64];
        uint8_t *in[64], *out[64];
        for (int i = 0; i < 5; i++)
            head[i] = read_number(file);
        for (int64_t i = 0; i < head[3]; i++)
            in_bytes[i] = read_number(file);
        for (int64_t i = 0; i < head[4]; i++)
            out_bytes[i] = read_number(file);
        uint8_t *rows = read_bytes(file, head[0] * (int64_t)sizeof(qk_step), 0);
        uint8_t *blob = read_bytes(file, head[2], QK_SLACK);
        uint8_t *arena = aligned_bytes(head[1] + QK_SLACK);
        memset(arena, 0xA5, (size_t)(head[1] + QK_SLACK));
        for (int64_t i = 0; i < head[3]; i++)
            in[i] = read_bytes(file, in_bytes[i], 0);
        for (int64_t i = 0; i < head[4]; i++)
            out[i] = aligned_bytes(out_bytes[i]);
        const qk_call call = {(const qk_step *)rows, head[0], arena, head[1], blob, head[2],
                              (const uint8_t *const *)in, in_bytes, head[3], out, out_bytes, head[4], 1, 0, 0, 0, 1, 0, 0};
        const int64_t failed = qk_check_call(&call);
        uint8_t *wanted[64];
        for (int64_t i = 0; i < head[4]; i++)
            wanted[i] = read_bytes(file, out_bytes[i], 0);
        for (int together = 0; together < 2; together++) {
            for (int64_t i = 0; i < head[4]; i++)
                memset(out[i], 0xA5, (size_t)out_bytes[i]);
            if (failed)
                printf("step %lld refused\n", (long long)failed - 1);
            else
                (together ? run_together : qk_run_call)(&call);
            for (int64_t i = 0; i < head[4]; i++)
                wrong += failed || memcmp(wanted[i], out[i], (size_t)out_bytes[i]) != 0;
        }
        for (int64_t i = 0; i < head[4]; i++) {
            free(wanted[i]);
            free(out[i]);
        }
        for (int64_t i = 0; i < head[3]; i++)
            free(in[i]);
        free(rows);
        free(blob);
        free(arena);
    }
    int64_t facts[12];
    printf("%s: %lld wrong\n", qk_isa(facts), (long long)wrong);
    fclose(file);
    return wrong != 0;
}
