//! Tiles of AMX: whether this process may use them, and their shape.
//!
//! Instructions are written as assembly, since the language does not have them yet. What tiles hold is no register that a
//! compiler knows, so nothing but such assembly changes it. Most blocks load, multiply and store; where what tiles hold is to
//! stay from one block to the next, all of them have the same [`Tiles`].

#[cfg(target_os = "linux")]
use std::sync::OnceLock;
use std::{arch::asm, marker::PhantomData};

/// Rows of a tile, and bytes of a row.
pub(crate) const ROWS: usize = 16;
pub(crate) const ROW_BYTES: usize = 64;

/// Bytes of a tile.
pub(crate) const TILE_BYTES: usize = ROWS * ROW_BYTES;

/// The features, by the names that LLVM has for them, that the processor has and the system lets this process use.
pub(crate) fn features() -> impl Iterator<Item = &'static str> {
    const BF16: u32 = 1 << 22;
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    let has = extended_features();
    // Lines are rounded by it. All processors with tiles have it, but what runs them may hide it.
    let rounds = std::arch::is_x86_feature_detected!("avx512bf16");
    let usable = has & TILE != 0 && rounds && is_permitted();
    [(TILE, "amx-tile"), (BF16, "amx-bf16"), (INT8, "amx-int8")]
        .into_iter()
        .filter_map(move |(bit, name)| (usable && has & bit != 0).then_some(name))
}

/// EDX of leaf 7 of CPUID.
fn extended_features() -> u32 {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    if __cpuid(0).eax < 7 { 0 } else { __cpuid_count(7, 0).edx }
}

/// Asks the system, once, for the room that a thread's tiles take. It holds for all threads of the process.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    static PERMITTED: OnceLock<bool> = OnceLock::new();
    *PERMITTED.get_or_init(|| {
        let result: i64;
        // SAFETY: the call changes nothing but what the process may use; a system that does not know it answers with an
        // error.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") ARCH_PRCTL => result,
                in("rdi") ARCH_REQ_XCOMP_PERM,
                in("rsi") TILE_DATA,
                lateout("rcx") _,
                lateout("r11") _,
                options(nostack),
            );
        }
        result == 0
    })
}

/// Other systems have other ways, which nobody has tried.
#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// Whether tests do in plain loops what tiles would do, where there are none: all around them is tested everywhere.
#[cfg(test)]
pub(crate) fn is_imitated() -> bool {
    features().next().is_none()
}

/// Tiles that have a shape, as many as any product names. The fewer, the more of the processor's are left for those to come.
const TILES: usize = 5;

/// Tiles of this thread that have a shape, as long as it lives. There may be one at a time.
pub(crate) struct Tiles(PhantomData<*mut ()>);

impl Tiles {
    /// Tiles 0 to 4, all of the full size; they hold zeros then.
    ///
    /// # Safety
    /// - [`features`] names `amx-tile`.
    /// - No other value of this type lives on this thread.
    pub(crate) unsafe fn new() -> Self {
        // SAFETY: passed on.
        unsafe { Self::shaped(&[(ROWS, ROW_BYTES); TILES]) }
    }

    /// The first tiles, of so many rows and bytes of a row.
    ///
    /// # Safety
    /// As [`Self::new`].
    ///
    /// # Panics
    /// If one has more than a tile has, or none.
    pub(crate) unsafe fn shaped(shapes: &[(usize, usize)]) -> Self {
        assert!(shapes.iter().all(|(rows, bytes)| (1..=ROWS).contains(rows) && (1..=ROW_BYTES).contains(bytes)));
        #[cfg(test)]
        if is_imitated() {
            return Self(PhantomData);
        }
        // Palette 1, which every processor with tiles has: bytes of a row from place 16, rows from 48.
        #[repr(align(64))]
        struct Shape([u8; 64]);
        let mut shape = Shape([0; 64]);
        shape.0[0] = 1;
        for (tile, &(rows, bytes)) in shapes.iter().enumerate() {
            shape.0[16 + 2 * tile] = bytes as u8;
            shape.0[48 + tile] = rows as u8;
        }
        // SAFETY: the processor has tiles, and the system keeps them for this process, says the caller.
        unsafe { asm!("ldtilecfg [{}]", in(reg) shape.0.as_ptr(), options(nostack, preserves_flags, readonly)) };
        Self(PhantomData)
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        #[cfg(test)]
        if is_imitated() {
            return;
        }
        // So that the system has nothing to keep when it changes threads.
        // SAFETY: `new` was told that the processor has tiles.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}
