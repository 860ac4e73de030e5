//! Rust types that are elements of tensors.

use half::{bf16, f16};
use kp_hal::DType;

/// A Rust type whose bits are those of a [`DType`].
pub trait Element: bytemuck::Pod + private::Sealed {
    /// That type.
    const DTYPE: DType;
}

mod private {
    pub trait Sealed {}
}

macro_rules! element {
    ($($rust:ty = $dtype:ident,)*) => {$(
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        }
        impl private::Sealed for $rust {}
    )*};
}
element! {
    f64 = F64,
    f32 = F32,
    f16 = F16,
    bf16 = Bf16,
    i8 = I8,
    u8 = U8,
    i32 = I32,
    i64 = I64,
}
