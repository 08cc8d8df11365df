/* The instructions of Arm's DSP extension that generated code calls, in C: other processors run it. */
#include <stdint.h>

static inline int32_t half(int32_t pair, int32_t which)
{
    return (int16_t)((uint32_t)pair >> 16 * which & 0xFFFFu);
}

static inline int32_t __smlad(int32_t x, int32_t y, int32_t sum)
{
    return sum + half(x, 0) * half(y, 0) + half(x, 1) * half(y, 1);
}

static inline int32_t __sxtb16(int32_t four)
{
    const uint32_t low = (uint32_t)(int8_t)(four & 0xFF);
    const uint32_t high = (uint32_t)(int8_t)(four >> 16 & 0xFF);
    return (int32_t)((low & 0xFFFFu) | high << 16);
}

static inline uint32_t __uxtb16(uint32_t four)
{
    return four & 0x00FF00FFu;
}
