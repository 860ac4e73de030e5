// Where the scale of an element lies. See kp_hal::op::Format.

// kp_hal::op::ScaleLayout, in its order, and one scale for all.
const uint SCALES_INNER = 0u, SCALES_OUTER = 1u, SCALES_TILES = 2u, SCALES_ONE = 3u;

// The place of block (`o`, `i`) among the scales of `blocks` blocks along outer and inner.
uint64_t scale_place(uint layout_of, uint o, uint i, uvec2 blocks) {
    switch (layout_of) {
        case SCALES_INNER: return uint64_t(o) * blocks.y + i;
        case SCALES_OUTER: return uint64_t(i) * ((blocks.x + 3u) / 4u * 4u) + o;
        case SCALES_TILES: return (uint64_t(o / 128u) * ((blocks.y + 3u) / 4u) + i / 4u) * 512ul + o % 32u * 16u + o % 128u / 32u * 4u + i % 4u;
        default: return 0ul;
    }
}

// Scales of one matrix, padding included; none where one serves all matrices.
uint64_t scale_count(uint layout_of, uvec2 blocks) {
    switch (layout_of) {
        case SCALES_INNER: return uint64_t(blocks.x) * blocks.y;
        case SCALES_OUTER: return uint64_t((blocks.x + 3u) / 4u * 4u) * blocks.y;
        case SCALES_TILES: return uint64_t((blocks.x + 127u) / 128u * 128u) * ((blocks.y + 3u) / 4u * 4u);
        default: return 0ul;
    }
}
