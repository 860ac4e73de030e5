#version 460
#extension GL_GOOGLE_include_directive : require

// Copies bytes: in pieces of 16, of 4 or of 1, as far as both addresses allow. Threads take pieces in turn, of 16 bytes four that are
// under way together.

#include "common/glsl/memory.glsl"

layout(local_size_x = 256) in;

layout(push_constant, std430) uniform Push {
    uint64_t dst;
    uint64_t src;
    uint64_t bytes;
};

void main() {
    const uint64_t first = uint64_t(gl_WorkGroupID.x) * 256ul + gl_LocalInvocationIndex;
    const uint64_t step = uint64_t(gl_NumWorkGroups.x) * 256ul;
    const uint off = uint(dst | src);
    // What no whole piece covers is left for the loop over bytes.
    uint64_t done = 0ul;
    if ((off & 15u) == 0u) {
        const uint64_t pieces = bytes / 16ul;
        for (uint64_t from = uint64_t(gl_WorkGroupID.x) * 1024ul; from < pieces; from += uint64_t(gl_NumWorkGroups.x) * 1024ul) {
            uvec4 words[4];
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                const uint64_t at = from + i * 256u + gl_LocalInvocationIndex;
                words[i] = at < pieces ? Quad(src + 16ul * at).v : uvec4(0u);
            }
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                const uint64_t at = from + i * 256u + gl_LocalInvocationIndex;
                if (at < pieces) {
                    Quad(dst + 16ul * at).v = words[i];
                }
            }
        }
        done = 16ul * pieces;
    } else if ((off & 3u) == 0u) {
        const uint64_t pieces = bytes / 4ul;
        for (uint64_t i = first; i < pieces; i += step) {
            Word(dst + 4ul * i).v = Word(src + 4ul * i).v;
        }
        done = 4ul * pieces;
    }
    for (uint64_t i = done + first; i < bytes; i += step) {
        Byte(dst + i).v = Byte(src + i).v;
    }
}
