//! Rust types that are elements of tensors.

use kp_hal::DType;

/// A Rust type whose bits are those of a [`DType`]; `f16` and `bf16` are half's, with the feature of that name.
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
    i8 = I8,
    u8 = U8,
    i32 = I32,
    i64 = I64,
}
#[cfg(feature = "half")]
element! {
    half::f16 = F16,
    half::bf16 = Bf16,
}
