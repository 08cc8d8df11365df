/* AMX: products by tiles of 16 x 16 sums, see tiled.h. All other primitives are those of AVX-512 with VNNI; where the
 * kernel gives no tiles, all are. */
#define QK_NAME (qk_has_tiles ? "amx" : "vnni")
#define QK_TILE_STEPS (qk_has_tiles ? 16 : 0) /* dot steps of a tile */
#ifdef QK_SCALAR_INTRINSICS
#define QK_EMULATED
#endif
#include "amx_tiles.h"
#include "isa_vnni.h"
