// What sums and what is added to them are: f32, or f64 with WIDE, where operands are f64 or become it exactly.

#ifdef WIDE
#define REAL double

layout(buffer_reference, std430, buffer_reference_align = 8) buffer Wide { double v; };

double real_at(uint64_t base, uint64_t index, uint dtype) {
    return dtype == F64 ? Wide(base + 8ul * index).v : double(number_at(base, index, dtype));
}

// D is f64 then.
void store_real(uint64_t base, uint64_t index, uint dtype, double x) {
    Wide(base + 8ul * index).v = x;
}

// The device's own functions are of f32: RELU alone, or nothing.
double activated_real(double x, uint act) {
    const uvec2 bits = unpackDouble2x32(x);
    const bool negative = (bits.y >> 31) != 0u && (bits.y & 0x7fffffffu) < 0x7ff00000u;
    return act == RELU && (negative || bits == uvec2(0u, 0xfff00000u)) ? 0.0lf : x;
}
#else
#define REAL float
#define real_at number_at
#define store_real store_number
#define activated_real activated
#endif
