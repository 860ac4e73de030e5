#version 460
#extension GL_GOOGLE_include_directive : require

// Sets bytes: those before the first boundary of 16 and after the last one by one, the rest in pieces of 16.

#include "common/glsl/memory.glsl"

layout(local_size_x = 256) in;

layout(push_constant, std430) uniform Push {
    uint64_t dst;
    uint64_t bytes;
    // The byte four times.
    uint word;
};

void main() {
    const uint64_t first = uint64_t(gl_WorkGroupID.x) * 256ul + gl_LocalInvocationIndex;
    const uint64_t step = uint64_t(gl_NumWorkGroups.x) * 256ul;
    const uint64_t before = min((16ul - (dst & 15ul)) & 15ul, bytes);
    const uint64_t pieces = (bytes - before) / 16ul;
    for (uint64_t i = first; i < pieces; i += step) {
        Quad(dst + before + 16ul * i).v = uvec4(word);
    }
    // At most 15 bytes on either side.
    const uint64_t after = before + 16ul * pieces;
    if (first < before) {
        Byte(dst + first).v = uint8_t(word & 0xffu);
    }
    if (after + first < bytes) {
        Byte(dst + after + first).v = uint8_t(word & 0xffu);
    }
}
