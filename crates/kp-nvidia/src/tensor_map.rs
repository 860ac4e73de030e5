//! Tensor maps: what the copy engine of an SM (TMA) must know of a tensor in memory.

use crate::{driver::Api, queue::NvidiaQueue};
use cudarc::driver::sys::{
    CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion,
    CUtensorMapSwizzle,
};
use kp_hal::Result;
use std::{
    ffi::c_void,
    sync::atomic::{AtomicU64, Ordering},
};

/// An encoded map, passed to a kernel by value as a `const __grid_constant__ CUtensorMap`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct TensorMap(CUtensorMap);

const _: () = assert!(size_of::<TensorMap>() == 128 && align_of::<TensorMap>() >= 64);

/// Most dimensions of a map.
pub(crate) const MAX_RANK: usize = 5;

/// Everything about a tensor but its address. The first dimension is the one whose elements lie side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tiled {
    element: Element,
    rank: u32,
    dims: [u64; MAX_RANK],
    strides: [u64; MAX_RANK - 1],
    tile: [u32; MAX_RANK],
    swizzle: Swizzle,
    promotion: Promotion,
    fill: Fill,
}

/// What one element is. Types of one width differ in how elements outside are filled, and in nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(dead_code, reason = "what the hardware offers; kernels use some of it")]
pub(crate) enum Element {
    /// 8 bits: also both FP8 types.
    U8,
    /// 16 bits.
    U16,
    /// 32 bits.
    U32,
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE single.
    F32,
    /// IEEE single, rounded to TF32 on the way.
    Tf32,
    /// 4 bits, two to a byte as in memory.
    U4,
    /// 4 bits, each 8 bytes of which become 16 bytes of shared memory, as `tcgen05` wants them beside FP8.
    U4Spread,
}

/// How 16-byte pieces of a tile's rows are exchanged in shared memory, so that columns are free of bank conflicts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(dead_code, reason = "what the hardware offers; kernels use some of it")]
pub(crate) enum Swizzle {
    /// Rows as they are.
    #[default]
    None,
    /// Within rows of 32 bytes.
    Bytes32,
    /// Within rows of 64 bytes.
    Bytes64,
    /// Within rows of 128 bytes.
    Bytes128,
}

/// How much L2 fetches when a piece misses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(dead_code, reason = "what the hardware offers; kernels use some of it")]
pub(crate) enum Promotion {
    /// What was asked for.
    None,
    /// 64 bytes.
    Bytes64,
    /// 128 bytes.
    Bytes128,
    /// 256 bytes.
    #[default]
    Bytes256,
}

/// What elements outside the tensor read as.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(dead_code, reason = "what the hardware offers; kernels use some of it")]
pub(crate) enum Fill {
    /// 0.
    #[default]
    Zero,
    /// NaN; for floating-point types only.
    Nan,
}

impl Tiled {
    /// A tensor of `dims` elements, of which `strides` are the distances in bytes between neighbours along all
    /// dimensions but the first, read in tiles of `tile` elements.
    ///
    /// # Panics
    /// If there are no dimensions, more than [`MAX_RANK`], or the slices' lengths do not agree.
    pub(crate) fn new(element: Element, dims: &[u64], strides: &[u64], tile: &[u32]) -> Self {
        let rank = dims.len();
        assert!(
            (1..=MAX_RANK).contains(&rank) && strides.len() == rank - 1 && tile.len() == rank,
            "a map of rank {rank}"
        );
        let mut map = Self {
            element,
            rank: rank as u32,
            dims: [1; MAX_RANK],
            strides: [0; MAX_RANK - 1],
            tile: [1; MAX_RANK],
            swizzle: Swizzle::default(),
            promotion: Promotion::default(),
            fill: Fill::default(),
        };
        map.dims[..rank].copy_from_slice(dims);
        map.strides[..rank - 1].copy_from_slice(strides);
        map.tile[..rank].copy_from_slice(tile);
        map
    }

    /// With this swizzle.
    #[must_use]
    pub(crate) fn swizzle(self, swizzle: Swizzle) -> Self {
        Self { swizzle, ..self }
    }

    /// With this promotion.
    #[allow(dead_code, reason = "what the hardware offers; kernels use some of it")]
    #[must_use]
    pub(crate) fn promotion(self, promotion: Promotion) -> Self {
        Self { promotion, ..self }
    }

    /// With this fill.
    #[allow(dead_code, reason = "what the hardware offers; kernels use some of it")]
    #[must_use]
    pub(crate) fn fill(self, fill: Fill) -> Self {
        Self { fill, ..self }
    }

    /// The map of this tensor at `addr`.
    ///
    /// # Errors
    /// `Driver`: the address or a stride is no multiple of 16, a dimension or tile is 0 or too large.
    fn encode(&self, api: &Api, addr: u64) -> Result<TensorMap> {
        let mut map = CUtensorMap { opaque: [0; 16] };
        // SAFETY: the arrays have `rank` and `rank - 1` numbers; the address is only written into the map.
        unsafe {
            api.cuTensorMapEncodeTiled(
                &mut map,
                self.element.into(),
                self.rank,
                addr as *mut c_void,
                self.dims.as_ptr(),
                self.strides.as_ptr(),
                self.tile.as_ptr(),
                [1; MAX_RANK].as_ptr(),
                CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                self.swizzle.into(),
                self.promotion.into(),
                self.fill.into(),
            )
        }
        .ok()?;
        Ok(TensorMap(map))
    }
}

/// One operand of one plan: with an address, the name of a map. Unique in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MapId(u64);

impl MapId {
    /// An id that no other operand has. For plans, when made.
    pub(crate) fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// How many maps a queue remembers; a power of two. A layer's launches need a few each.
const SLOTS: usize = 256;

/// The maps a queue's launches used last.
pub(crate) struct MapCache(Box<[Slot; SLOTS]>);

#[derive(Clone, Copy)]
struct Slot {
    id: u64,
    addr: u64,
    map: TensorMap,
}

impl MapCache {
    pub(crate) fn new() -> Self {
        let empty = Slot { id: 0, addr: 0, map: TensorMap(CUtensorMap { opaque: [0; 16] }) };
        Self(Box::new([empty; SLOTS]))
    }

    /// The map of operand `id` at `addr`, encoded if it is not remembered.
    #[inline]
    fn find(&mut self, id: MapId, addr: u64, encode: impl FnOnce() -> Result<TensorMap>) -> Result<&TensorMap> {
        let slot = &mut self.0[slot_of(id, addr)];
        if (slot.id, slot.addr) != (id.0, addr) {
            *slot = Slot { id: id.0, addr, map: encode()? };
        }
        Ok(&slot.map)
    }
}

/// Buffers lie at multiples of 256 and more, ids are consecutive: the product spreads both over the upper bits.
fn slot_of(id: MapId, addr: u64) -> usize {
    let mixed = (id.0 ^ (addr >> 8).rotate_left(20)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (u64::BITS - SLOTS.ilog2())) as usize
}

impl NvidiaQueue {
    /// The map of operand `id`, which is `tensor` at `addr`. Encodes only what this queue has not used lately.
    ///
    /// # Errors
    /// `Driver`: the address or a stride is no multiple of 16, a dimension or tile is 0 or too large.
    #[inline]
    pub(crate) fn tensor_map(&mut self, id: MapId, addr: u64, tensor: &Tiled) -> Result<TensorMap> {
        let Self { context, maps, .. } = self;
        let encode = || {
            // A thread that was only handed a queue may have no context, and encoding wants one.
            context.enter()?;
            tensor.encode(context.api(), addr)
        };
        maps.find(id, addr, encode).copied()
    }
}

impl From<Element> for CUtensorMapDataType {
    fn from(element: Element) -> Self {
        match element {
            Element::U8 => Self::CU_TENSOR_MAP_DATA_TYPE_UINT8,
            Element::U16 => Self::CU_TENSOR_MAP_DATA_TYPE_UINT16,
            Element::U32 => Self::CU_TENSOR_MAP_DATA_TYPE_UINT32,
            Element::F16 => Self::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            Element::Bf16 => Self::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            Element::F32 => Self::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
            Element::Tf32 => Self::CU_TENSOR_MAP_DATA_TYPE_TFLOAT32,
            Element::U4 => Self::CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B,
            Element::U4Spread => Self::CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B,
        }
    }
}

impl From<Swizzle> for CUtensorMapSwizzle {
    fn from(swizzle: Swizzle) -> Self {
        match swizzle {
            Swizzle::None => Self::CU_TENSOR_MAP_SWIZZLE_NONE,
            Swizzle::Bytes32 => Self::CU_TENSOR_MAP_SWIZZLE_32B,
            Swizzle::Bytes64 => Self::CU_TENSOR_MAP_SWIZZLE_64B,
            Swizzle::Bytes128 => Self::CU_TENSOR_MAP_SWIZZLE_128B,
        }
    }
}

impl From<Promotion> for CUtensorMapL2promotion {
    fn from(promotion: Promotion) -> Self {
        match promotion {
            Promotion::None => Self::CU_TENSOR_MAP_L2_PROMOTION_NONE,
            Promotion::Bytes64 => Self::CU_TENSOR_MAP_L2_PROMOTION_L2_64B,
            Promotion::Bytes128 => Self::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            Promotion::Bytes256 => Self::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        }
    }
}

impl From<Fill> for CUtensorMapFloatOOBfill {
    fn from(fill: Fill) -> Self {
        match fill {
            Fill::Zero => Self::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            Fill::Nan => Self::CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_encoded_once_for_an_operand_and_address() {
        let mut cache = MapCache::new();
        let (id, other) = (MapId::next(), MapId::next());
        let mut encoded = 0;
        let mut find = |id, addr| {
            let map = |n| TensorMap(CUtensorMap { opaque: [n; 16] });
            let mut fresh = false;
            let found = cache.find(id, addr, || {
                fresh = true;
                Ok(map(addr ^ id.0))
            });
            assert_eq!(found.expect("encoding cannot fail here").0, map(addr ^ id.0).0);
            encoded += usize::from(fresh);
        };
        for _ in 0..3 {
            find(id, 0x1000);
            find(id, 0x2000);
            find(other, 0x1000);
        }
        assert_eq!(encoded, 3);
    }

    #[test]
    fn a_layer_s_maps_rarely_share_a_slot() {
        // 32 plans of three operands, at consecutive 2 MiB buffers: fewer than a tenth collide.
        let mut used = [false; SLOTS];
        let clashes =
            (1..=96_u64).filter(|&n| std::mem::replace(&mut used[slot_of(MapId(n), 0x7000_0000 + (n << 21))], true));
        assert!(clashes.count() < 30);
    }

    #[test]
    #[should_panic(expected = "a map of rank 2")]
    fn strides_are_one_fewer_than_dimensions() {
        Tiled::new(Element::Bf16, &[64, 64], &[128, 64], &[64, 8]);
    }
}
