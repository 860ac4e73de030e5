//! Descriptors: the numbers that tell `tcgen05` of its operands.
//!
//! Made here and given to the source as macros, so that they are tested where no such device is. "Section" is of the PTX ISA, version 9.1.

use kp_hal::{
    DType,
    op::{GemmSpec, Order, Scheme},
};

/// What `tcgen05.mma` multiplies, by its name in the source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// TF32.
    Tf32,
    /// 16-bit floats.
    F16,
    /// 8-bit floats.
    F8f6f4,
    /// 8-bit floats, an E8M0 per 32.
    Mxf8f6f4,
    /// E2M1, an E8M0 per 32.
    Mxf4,
    /// E2M1, a UE4M3 per 16.
    Mxf4nvf4,
}

impl Kind {
    /// Of two operands, if there is one.
    pub(super) fn of(spec: &GemmSpec) -> Option<Self> {
        use DType::{Bf16, E2m1, E4m3, E5m2, F16, Tf32};
        let scheme = |s: Scheme| if s == Scheme::Mx || s == Scheme::Nv { s } else { Scheme::None };
        let (a, b) = (scheme(spec.a.format.scheme), scheme(spec.b.format.scheme));
        match (spec.a.dtype(), spec.b.dtype(), a, b) {
            (Tf32, Tf32, Scheme::None, Scheme::None) => Some(Self::Tf32),
            (Bf16, Bf16, Scheme::None, Scheme::None) | (F16, F16, Scheme::None, Scheme::None) => Some(Self::F16),
            (E4m3 | E5m2, E4m3 | E5m2, Scheme::None, Scheme::None) => Some(Self::F8f6f4),
            (E4m3 | E5m2, E4m3 | E5m2, Scheme::Mx, Scheme::Mx) => Some(Self::Mxf8f6f4),
            (E2m1, E2m1, Scheme::Mx, Scheme::Mx) => Some(Self::Mxf4),
            (E2m1, E2m1, Scheme::Nv, Scheme::Nv) => Some(Self::Mxf4nvf4),
            _ => None,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Tf32 => "TF32",
            Self::F16 => "F16",
            Self::F8f6f4 => "F8F6F4",
            Self::Mxf8f6f4 => "MXF8F6F4",
            Self::Mxf4 => "MXF4",
            Self::Mxf4nvf4 => "MXF4NVF4",
        }
    }

    /// Elements of k that one product takes: 32 bytes (section 9.7.16.2.1).
    pub(super) const fn k(self) -> u32 {
        match self {
            Self::Tf32 => 8,
            Self::F16 => 16,
            Self::F8f6f4 | Self::Mxf8f6f4 => 32,
            Self::Mxf4 | Self::Mxf4nvf4 => 64,
        }
    }

    /// Scales of a row that one product takes (section 9.7.16.10.7.1); 0 if there are none.
    pub(super) const fn scales(self) -> u32 {
        match self {
            Self::Tf32 | Self::F16 | Self::F8f6f4 => 0,
            Self::Mxf8f6f4 => 1,
            Self::Mxf4 => 2,
            Self::Mxf4nvf4 => 4,
        }
    }

    /// How this kind's instruction descriptor spells a type.
    const fn code(self, t: DType) -> u32 {
        match (self, t) {
            (Self::Tf32, _) => 2,
            (Self::F16, DType::Bf16) | (_, DType::E5m2 | DType::E2m1) => 1,
            _ => 0,
        }
    }
}

/// Which of an operand's dimensions lies side by side in shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Major {
    K,
    /// A's rows or B's columns.
    Mn,
}

impl Major {
    pub(super) fn of_a(spec: &GemmSpec) -> Self {
        if spec.a.order == Order::Col { Self::Mn } else { Self::K }
    }

    pub(super) fn of_b(spec: &GemmSpec) -> Self {
        if spec.b.order == Order::Row { Self::Mn } else { Self::K }
    }
}

/// The instruction descriptor (section 9.7.16.4.2) of f32 sums of `m` × `n`, both blocks of a pair together.
///
/// Kinds with scales have M at bits 27 and 28, in units of 128, which is where M in units of 16 puts it. The source adds which of four scales
/// a product begins with, A's at bit 29, B's at bit 4.
pub(super) fn instruction(kind: Kind, types: [DType; 2], majors: [Major; 2], (m, n): (u32, u32)) -> u32 {
    let [a, b] = types.map(|t| kind.code(t));
    let [a_mn, b_mn] = majors.map(|major| u32::from(major == Major::Mn));
    // D is f32; with scales it cannot be anything else, and these are the bits of B's scales.
    let d = u32::from(kind.scales() == 0) << 4;
    let e8m0 = u32::from(matches!(kind, Kind::Mxf8f6f4 | Kind::Mxf4)) << 23;
    d | a << 7 | b << 10 | a_mn << 15 | b_mn << 16 | (n >> 3) << 17 | e8m0 | (m >> 4) << 24
}

/// The shared memory descriptor (section 9.7.16.4.1) but for the address, offsets in bytes.
const fn shared(swizzle: u64, leading: u64, stride: u64) -> u64 {
    swizzle << 61 | 1 << 46 | (stride >> 4) << 32 | (leading >> 4) << 16
}

/// Swizzling modes of the descriptor, those that are used.
const PLAIN: u64 = 0;
const BYTES_128: u64 = 2;

/// Of an operand that the copy engine wrote in rows of 128 bytes, swizzled by 128.
///
/// K-major, rows are A's rows or B's columns, eight of them 1024 bytes, and the leading offset is not used. Otherwise rows are k, eight of
/// them 1024 bytes, and the next 64 elements of the other dimension are a box of 64 k further.
pub(super) const fn operand(major: Major) -> u64 {
    match major {
        Major::K => shared(BYTES_128, 0, 8 * 128),
        Major::Mn => shared(BYTES_128, 64 * 128, 8 * 128),
    }
}

/// Of a tile of scales: 32 rows of 16 bytes, one after the other.
pub(super) const SCALES: u64 = shared(PLAIN, 0, 8 * 16);

/// The macros.
pub(super) fn defines(spec: &GemmSpec, kind: Kind, m: u32, n: u32) -> [(&'static str, String); 4] {
    let majors = [Major::of_a(spec), Major::of_b(spec)];
    let instruction = instruction(kind, [spec.a.dtype(), spec.b.dtype()], majors, (m, n));
    [
        ("KP_INSTRUCTION", format!("{instruction:#x}u")),
        ("KP_A_DESCRIPTOR", format!("{:#x}ull", operand(majors[0]))),
        ("KP_B_DESCRIPTOR", format!("{:#x}ull", operand(majors[1]))),
        ("KP_SCALE_DESCRIPTOR", format!("{SCALES:#x}ull")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use kp_hal::op::{Format, ScaleLayout};

    /// Bits `low` to `high` of a descriptor.
    fn bits(of: u64, low: u32, high: u32) -> u64 {
        of >> low & ((1 << (high - low + 1)) - 1)
    }

    /// Each field where tables 42, 43 and 44 have it.
    #[test]
    fn instructions_have_their_fields_where_the_tables_say() {
        use DType::{Bf16, E2m1, E4m3, E5m2, F16, Tf32};
        let k = [Major::K; 2];
        // The number that public kernels write for bf16, 128 × 256.
        assert_eq!(instruction(Kind::F16, [Bf16; 2], k, (128, 256)), 1 << 4 | 1 << 7 | 1 << 10 | 32 << 17 | 8 << 24);
        let fields = |kind, types, majors, shape| {
            let d = u64::from(instruction(kind, types, majors, shape));
            let scaled = kind.scales() > 0;
            assert_eq!(bits(d, 0, 3), 0, "dense, no saturation");
            assert_eq!(bits(d, 4, 6), u64::from(!scaled), "D is f32, or which of B's scales");
            assert_eq!(bits(d, 13, 14), 0, "nothing is negated");
            assert_eq!(bits(d, 29, 31), 0, "no shift, or which of A's scales and K = 64");
            let m = if scaled { bits(d, 27, 28) << 7 } else { bits(d, 24, 28) << 4 };
            assert!(!scaled || bits(d, 24, 26) == 0, "reserved");
            let types = (bits(d, 7, 9), bits(d, 10, 12));
            let transposed = (bits(d, 15, 15), bits(d, 16, 16));
            (types, transposed, bits(d, 23, 23), m, bits(d, 17, 22) << 3)
        };
        assert_eq!(fields(Kind::F16, [F16; 2], [Major::Mn, Major::K], (256, 64)), ((0, 0), (1, 0), 0, 256, 64));
        assert_eq!(fields(Kind::F16, [Bf16; 2], [Major::K, Major::Mn], (128, 192)), ((1, 1), (0, 1), 0, 128, 192));
        assert_eq!(fields(Kind::Tf32, [Tf32; 2], k, (256, 128)), ((2, 2), (0, 0), 0, 256, 128));
        assert_eq!(fields(Kind::F8f6f4, [E4m3, E5m2], k, (256, 256)), ((0, 1), (0, 0), 0, 256, 256));
        assert_eq!(fields(Kind::Mxf8f6f4, [E5m2, E4m3], k, (256, 256)), ((1, 0), (0, 0), 1, 256, 256));
        assert_eq!(fields(Kind::Mxf4, [E2m1; 2], k, (128, 128)), ((1, 1), (0, 0), 1, 128, 128));
        assert_eq!(fields(Kind::Mxf4nvf4, [E2m1; 2], k, (256, 128)), ((1, 1), (0, 0), 0, 256, 128));
    }

    /// Strides of section 9.7.16.3.3's examples, in bytes, and how it encodes them.
    #[test]
    fn offsets_are_encoded_as_in_the_examples() {
        const EXAMPLES: [(u64, u64, u64, u64); 4] =
            [(256, 128, 16, 8), (0, 256, 0, 16), (256, 512, 16, 32), (512, 1024, 32, 64)];
        for (leading, stride, leading_code, stride_code) in EXAMPLES {
            let d = shared(PLAIN, leading, stride);
            assert_eq!((bits(d, 16, 29), bits(d, 32, 45)), (leading_code, stride_code));
        }
        for d in [operand(Major::K), operand(Major::Mn), SCALES] {
            assert_eq!(bits(d, 0, 13), 0, "the address is the source's");
            assert_eq!((bits(d, 46, 48), bits(d, 49, 51), bits(d, 52, 52), bits(d, 53, 60)), (1, 0, 0, 0));
        }
        // With a leading offset of 1, as some write it where it is not used.
        assert_eq!(operand(Major::K) | 1 << 16, 0x4000_4040_0001_0000);
        assert_eq!(bits(SCALES, 61, 63), 0);
    }

    /// Byte `x` of a 128-byte row `y`, where the copy engine swizzles by 128: section 5.5.7.
    fn copied_to(y: u64, x: u64) -> u64 {
        y * 128 + (x ^ (y % 8 * 16))
    }

    /// Swizzle<3, 4, 3> of an address.
    fn swizzled(address: u64) -> u64 {
        address ^ (address >> 7 & 7) << 4
    }

    /// Every 16-byte piece of a stage's operand, where the matrix unit looks for it and where the copy engine puts it.
    ///
    /// The canonical layouts are those of section 9.7.16.3.3, in pieces of 16 bytes, from where the descriptor begins: the swizzle is of
    /// addresses, not of what is between them.
    #[test]
    fn operands_are_where_the_copy_engine_put_them() {
        const ROWS: u64 = 256;
        let d = operand(Major::K);
        let stride = bits(d, 32, 45) << 4;
        for (step, row, piece) in (0..4).flat_map(|s| (0..ROWS).flat_map(move |r| (0..2).map(move |p| (s, r, p)))) {
            let begin = (step * 2) << 4;
            // ((8, m), (T, 2k)) : ((8T, SBO), (1, T))
            let seen = swizzled(begin + row % 8 * 128 + row / 8 * stride + piece * 16);
            assert_eq!(seen, copied_to(row, step * 32 + piece * 16), "step {step}, row {row}");
        }
        let d = operand(Major::Mn);
        let (leading, stride) = (bits(d, 16, 29) << 4, bits(d, 32, 45) << 4);
        // Boxes of 64 elements, which are 8 pieces, and 64 k; a product takes 16 k.
        for (step, piece, k) in (0..4).flat_map(|s| (0..ROWS / 8).flat_map(move |p| (0..16).map(move |k| (s, p, k)))) {
            let begin = (step * 128) << 4;
            // ((T, 8, m), (8, k)) : ((1, T, LBO), (8T, SBO))
            let seen = swizzled(begin + piece % 8 * 16 + piece / 8 * leading + k % 8 * 128 + k / 8 * stride);
            let put = piece / 8 * (64 * 128) + copied_to(step * 16 + k, piece % 8 * 16);
            assert_eq!(seen, put, "step {step}, piece {piece}, k {k}");
        }
    }

    /// What the gathering warp puts in a stage is what a box of tiles would have: tiles along rows, and in each those along k.
    #[test]
    fn words_are_gathered_to_their_places_in_tiles() {
        let format = Format { scales: ScaleLayout::Tiles, ..Format::new(DType::E2m1, Scheme::Nv) };
        for (tiles, scales) in [(1_u32, 1_u32), (2, 1), (2, 2), (2, 4)] {
            let shape = (128 * tiles, scales * 4 * 16);
            for (i, lane, word) in
                (0..4 * tiles).flat_map(|i| (0..32).flat_map(move |l| (0..scales).map(move |w| (i, l, w))))
            {
                let put = (i / 4 * scales + word) * 512 + lane * 16 + i % 4 * 4;
                assert_eq!(u64::from(put), format.scale_index((32 * i + lane, word * 4), shape));
            }
        }
    }

    /// Tiles of D of 64 and 192 columns begin in the middle of a tile of scales: the columns before are another's.
    #[test]
    fn columns_of_any_tile_find_their_scales() {
        for (n, tile) in [64_u32, 128, 192, 256].into_iter().flat_map(|n| (0..7).map(move |tile| (n, tile))) {
            let (first, before, loaded) = (tile * n / 128, tile * n % 128 / 32, n.div_ceil(128));
            for column in 0..n {
                // Lane column % 32, and columns from `before` on, of which four are a tile's.
                let (lane, at) = (column % 32, before + column / 32);
                assert!(at < 4 * loaded, "{n} columns, tile {tile}");
                assert_eq!((first + at / 4) * 128 + at % 4 * 32 + lane, tile * n + column);
            }
        }
    }

    /// Every scale of a stage, from kp-hal's layout in memory to the lane, column and byte that a product reads.
    #[test]
    fn scales_are_where_products_read_them() {
        for (kind, format) in [
            (Kind::Mxf8f6f4, Format { scales: ScaleLayout::Tiles, ..Format::new(DType::E4m3, Scheme::Mx) }),
            (Kind::Mxf4, Format { scales: ScaleLayout::Tiles, ..Format::new(DType::E2m1, Scheme::Mx) }),
            (Kind::Mxf4nvf4, Format { scales: ScaleLayout::Tiles, ..Format::new(DType::E2m1, Scheme::Nv) }),
        ] {
            let (rows, per_step) = (256_u32, kind.scales());
            // Two stages of four products.
            let shape = (rows, 8 * kind.k());
            let (row_tiles, stage_tiles) = (rows / 128, per_step);
            let inner_tiles = 2 * stage_tiles;
            for stage in 0..2 {
                // TMEM by lane, column and byte, as the source fills it: a box {512 bytes, tiles along k, tiles along rows}, of which each
                // tile is copied by itself, row r of 16 bytes to lane r and four columns.
                let mut tmem = std::collections::BTreeMap::new();
                for (row_tile, tile) in (0..row_tiles).flat_map(|r| (0..stage_tiles).map(move |t| (r, t))) {
                    let memory = u64::from(row_tile * inner_tiles + stage * stage_tiles + tile) * 512;
                    let column = (tile * row_tiles + row_tile) * 4;
                    let stride = bits(SCALES, 32, 45) << 4;
                    for (lane, byte) in (0..32_u32).flat_map(|l| (0..16_u32).map(move |b| (l, b))) {
                        // ((8, m), (T, 2k)) : ((1T, SBO), (1, LBO)), T being 16 bytes.
                        let from = u64::from(lane % 8 * 16) + u64::from(lane / 8) * stride + u64::from(byte);
                        tmem.insert((lane, column + byte / 4, byte % 4), memory + from);
                    }
                }
                for (step, row, i) in
                    (0..4).flat_map(|s| (0..rows).flat_map(move |r| (0..per_step).map(move |i| (s, r, i))))
                {
                    // As the source has it: the tile, and the first of its four scales.
                    let (tile, first) = (step * per_step / 4, step * per_step % 4);
                    let read = tmem[&(row % 32, tile * row_tiles * 4 + row / 32, first + i)];
                    let block = (stage * 4 + step) * per_step + i;
                    assert_eq!(
                        read,
                        format.scale_index((row, block), shape),
                        "{kind:?}: stage {stage}, step {step}, row {row}"
                    );
                    // Of kinds with 1, 2 and 4 scales a product, the first may be 0 to 3, 0 or 2, and 0 (section 9.7.16.10.7.2).
                    assert!(first.is_multiple_of(per_step));
                }
            }
        }
    }
}
