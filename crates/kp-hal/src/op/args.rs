//! Arguments of a launch, and the one check there is of them.

use super::problem::{Align, BadProblem};
use crate::{
    device::DeviceId,
    dtype::DType,
    memory::{Slice, SliceMut},
};
use std::fmt;

/// One buffer an op may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operand {
    /// Its field in the op's arguments: `a_scale`.
    pub name: &'static str,
    /// Whether the kernel writes it. It may also read it: see `Need::reads`.
    pub output: bool,
    /// Whether some problems of the op do without it.
    pub optional: bool,
}

/// What one problem needs of one operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Need {
    /// Bytes from the first to the last element touched, or `ABSENT`.
    pub bytes: u64,
    /// The address must be a multiple of this, in bytes.
    pub align: u32,
    /// The type of its elements.
    pub dtype: DType,
    /// Whether the kernel reads the previous contents.
    pub reads: bool,
}

impl Need {
    /// The `bytes` of an operand that a problem does not have; passing it anyway is an error.
    pub const ABSENT: u64 = u64::MAX;

    const NONE: Self = Self { bytes: Self::ABSENT, align: 1, dtype: DType::U8, reads: false };

    /// Whether the problem has this operand.
    pub const fn is_present(&self) -> bool {
        self.bytes != Self::ABSENT
    }
}

/// Most operands an op may have.
pub const MAX_OPERANDS: usize = 24;

/// What one problem needs of each operand, in the order of its op's `OPERANDS`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Needs {
    list: [Need; MAX_OPERANDS],
    /// A bit for each optional operand that the problem has.
    options: u32,
}

impl Needs {
    /// The need of operand `i`.
    #[inline]
    pub fn get(&self, i: usize) -> &Need {
        &self.list[i]
    }

    /// Bit i is set if operand i is optional and the problem has it.
    #[inline]
    pub(super) fn options(&self) -> u32 {
        self.options
    }
}

/// Collects needs by name while a spec lists them.
#[derive(Debug)]
pub struct NeedList {
    list: [(&'static str, Need); MAX_OPERANDS],
    len: usize,
}

impl Default for NeedList {
    fn default() -> Self {
        Self { list: [("", Need::NONE); MAX_OPERANDS], len: 0 }
    }
}

impl NeedList {
    /// An input of `elements` elements, if `on`.
    pub fn input(&mut self, name: &'static str, on: bool, dtype: DType, elements: u64) {
        self.push(name, on, dtype, elements, true);
    }

    /// An output of `elements` elements, if `on`.
    pub fn output(&mut self, name: &'static str, on: bool, dtype: DType, elements: u64) {
        self.push(name, on, dtype, elements, false);
    }

    /// An operand of `elements` elements, if `on`; `reads` says whether the kernel reads its contents.
    pub fn push(&mut self, name: &'static str, on: bool, dtype: DType, elements: u64, reads: bool) {
        if on {
            self.list[self.len] =
                (name, Need { bytes: dtype.bytes(elements), align: dtype.natural_align(), dtype, reads });
            self.len += 1;
        }
    }

    /// The sum of all bytes. An output that is also read counts once.
    pub(super) fn total_bytes(&self) -> u64 {
        self.list[..self.len].iter().fold(0, |sum, (_, need)| sum.saturating_add(need.bytes))
    }

    /// Refuses operands of more than 2⁶³ − 1 bytes.
    pub(super) fn check(&self) -> Result<(), BadProblem> {
        const MAX: u64 = i64::MAX as u64;
        match self.list[..self.len].iter().find(|(_, need)| need.bytes > MAX) {
            Some((name, need)) => Err(BadProblem::TooLarge { what: bytes_of(name), max: MAX, got: need.bytes }),
            None => Ok(()),
        }
    }

    /// The list in the order of `operands`.
    ///
    /// # Panics
    /// If a spec names an operand that its op does not have.
    pub(super) fn ordered(&self, operands: &[Operand], align: Align) -> Needs {
        let mut needs = Needs { list: [Need::NONE; MAX_OPERANDS], options: 0 };
        for (name, need) in &self.list[..self.len] {
            let at = operands.iter().position(|o| o.name == *name);
            let at = at.unwrap_or_else(|| panic!("a spec names `{name}`, which is no operand of its op"));
            needs.list[at] = Need { align: need.align.max(align.bytes()), ..*need };
            needs.options |= u32::from(operands[at].optional) << at;
        }
        needs
    }
}

/// `a` → `bytes of a`, for the operands large enough to overflow.
fn bytes_of(name: &'static str) -> &'static str {
    match name {
        "a" => "bytes of a",
        "b" => "bytes of b",
        "d" => "bytes of d",
        "x" => "bytes of x",
        "y" => "bytes of y",
        _ => "bytes of an operand",
    }
}

/// A view of any kind, for code that binds arguments by position.
#[derive(Debug)]
pub enum View<'a> {
    /// For an input.
    In(Slice<'a>),
    /// For an output.
    Out(SliceMut<'a>),
}

/// The buffers and scalars of one launch.
///
/// Implemented by the structs of this module only; a field per operand, in the order of `OPERANDS`.
pub trait Args<'a>: Sized {
    /// Every operand the op may have.
    const OPERANDS: &'static [Operand];
    /// Every scalar and its default.
    const SCALARS: &'static [(&'static str, f32)];

    /// Whether the buffers fit a problem. The only validation there is; backends do none.
    ///
    /// # Errors
    /// The first operand that does not fit, and why.
    fn check(&self, needs: &Needs, device: DeviceId) -> Result<(), ArgError>;

    /// Tells of each buffer: where it begins, its bytes, and whether the kernel writes it.
    fn each_view(&self, tell: impl FnMut(u64, u64, bool));

    /// Binds views by position, `None` for operands the problem does not have; scalars get their defaults.
    ///
    /// # Errors
    /// `Missing` if a view that every problem needs is `None`, or is of the wrong kind.
    fn bind(views: Vec<Option<View<'a>>>) -> Result<Self, ArgError>;

    /// Sets scalar `name`; answers whether there is one.
    fn set_scalar(&mut self, name: &str, value: f32) -> bool;
}

/// Why arguments do not fit a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ArgError {
    /// An argument lives on another device than the plan.
    WrongDevice {
        /// Which.
        operand: &'static str,
        /// Where the plan runs.
        plan: DeviceId,
        /// Where the argument is.
        got: DeviceId,
    },
    /// A buffer is too short.
    TooShort {
        /// Which.
        operand: &'static str,
        /// Bytes needed.
        need: u64,
        /// Bytes passed.
        got: u64,
    },
    /// A copy between different lengths.
    Length {
        /// Which.
        operand: &'static str,
        /// Bytes of the other side.
        need: u64,
        /// Bytes of this side.
        got: u64,
    },
    /// An address is not a multiple of what the problem promised.
    Misaligned {
        /// Which.
        operand: &'static str,
        /// Bytes promised.
        align: u32,
        /// The address.
        addr: u64,
    },
    /// The problem needs an operand that was not passed.
    Missing {
        /// Which.
        operand: &'static str,
    },
    /// An operand was passed that the problem does not have.
    Unexpected {
        /// Which.
        operand: &'static str,
    },
}

impl std::error::Error for ArgError {}

impl fmt::Display for ArgError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::WrongDevice { operand, plan, got } => {
                write!(f, "{operand} is on device {got}, the plan is for device {plan}")
            }
            Self::TooShort { operand, need, got } => write!(f, "{operand} needs {need} bytes, got {got}"),
            Self::Length { operand, need, got } => write!(f, "{operand} must have {need} bytes, got {got}"),
            Self::Misaligned { operand, align, addr } => {
                write!(f, "{operand} must be aligned to {align} bytes, got address {addr:#x}")
            }
            Self::Missing { operand } => write!(f, "{operand} is missing"),
            Self::Unexpected { operand } => write!(f, "{operand} is given, but the problem has none"),
        }
    }
}

/// `operand` is on `device`, holds the bytes and is aligned.
#[inline]
pub(super) fn fits(
    operand: &'static str,
    need: &Need,
    device: DeviceId,
    (addr, bytes, on): (u64, u64, DeviceId),
) -> Result<(), ArgError> {
    if on != device {
        return Err(ArgError::WrongDevice { operand, plan: device, got: on });
    }
    if bytes < need.bytes {
        return Err(if need.is_present() {
            ArgError::TooShort { operand, need: need.bytes, got: bytes }
        } else {
            ArgError::Unexpected { operand }
        });
    }
    if addr & u64::from(need.align - 1) != 0 && bytes != 0 {
        return Err(ArgError::Misaligned { operand, align: need.align, addr });
    }
    Ok(())
}

/// The first optional operand that is given and not asked for, or asked for and not given.
#[cold]
pub(super) fn not_as_asked(operands: &[Operand], asked: u32, given: u32) -> ArgError {
    let at = (asked ^ given).trailing_zeros();
    let operand = operands[at as usize].name;
    if given >> at & 1 == 1 { ArgError::Unexpected { operand } } else { ArgError::Missing { operand } }
}

/// Declares the arguments of an op: the struct, its constructor from the operands every problem has,
/// and `Args`. Written once here because fourteen ops would each repeat it.
///
/// Each is an `input` or an `output`: first the operands of every problem, behind `?` those of some, behind `=` the scalars with their
/// defaults.
macro_rules! args {
    (
        $(#[$meta:meta])*
        $name:ident {
            $($(#[$rdoc:meta])* $rkind:ident $req:ident,)*
            ? $($(#[$odoc:meta])* $okind:ident $opt:ident,)*
            = $($(#[$sdoc:meta])* $scalar:ident: $default:expr,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug)]
        pub struct $name<'a> {
            $($(#[$rdoc])* pub $req: $crate::op::args::view!($rkind 'a),)*
            $($(#[$odoc])* pub $opt: Option<$crate::op::args::view!($okind 'a)>,)*
            $($(#[$sdoc])* pub $scalar: f32,)*
        }

        impl<'a> $name<'a> {
            /// The operands every problem has; the others are `None`, scalars have their defaults.
            #[allow(clippy::too_many_arguments, reason = "one per operand, named by the caller's bindings")]
            pub fn new($($req: $crate::op::args::view!($rkind 'a)),*) -> Self {
                Self { $($req,)* $($opt: None,)* $($scalar: $default,)* }
            }
        }

        impl<'a> $crate::op::Args<'a> for $name<'a> {
            const OPERANDS: &'static [$crate::op::Operand] = &[
                $($crate::op::Operand { name: stringify!($req), output: $crate::op::args::output!($rkind), optional: false },)*
                $($crate::op::Operand { name: stringify!($opt), output: $crate::op::args::output!($okind), optional: true },)*
            ];
            const SCALARS: &'static [(&'static str, f32)] = &[$((stringify!($scalar), $default),)*];

            #[inline]
            fn check(&self, needs: &$crate::op::Needs, device: $crate::DeviceId) -> Result<(), $crate::op::ArgError> {
                let mut i = 0;
                $(
                    let s = &self.$req;
                    $crate::op::args::fits(stringify!($req), needs.get(i), device, (s.addr(), s.bytes(), s.device()))?;
                    i += 1;
                )*
                // Most launches have few optional operands or none: which are given is compared at once.
                #[allow(unused_mut, reason = "some ops have none")]
                let (first, mut given) = (i, 0_u32);
                $(
                    given |= u32::from(self.$opt.is_some()) << i;
                    i += 1;
                )*
                if given != needs.options() {
                    return Err($crate::op::args::not_as_asked(Self::OPERANDS, needs.options(), given));
                }
                if given != 0 {
                    i = first;
                    $(
                        if let Some(s) = &self.$opt {
                            $crate::op::args::fits(
                                stringify!($opt), needs.get(i), device, (s.addr(), s.bytes(), s.device()))?;
                        }
                        i += 1;
                    )*
                }
                let _ = i;
                Ok(())
            }

            #[inline]
            fn each_view(&self, mut tell: impl FnMut(u64, u64, bool)) {
                $(tell(self.$req.addr(), self.$req.bytes(), $crate::op::args::output!($rkind));)*
                $(if let Some(s) = &self.$opt {
                    tell(s.addr(), s.bytes(), $crate::op::args::output!($okind));
                })*
            }

            fn bind(views: Vec<Option<$crate::op::View<'a>>>) -> Result<Self, $crate::op::ArgError> {
                let mut views = views.into_iter();
                $(
                    let missing = $crate::op::ArgError::Missing { operand: stringify!($req) };
                    let $req = match views.next().flatten() {
                        Some($crate::op::args::pattern!($rkind s)) => s,
                        _ => return Err(missing),
                    };
                )*
                $(
                    let $opt = match views.next().flatten() {
                        Some($crate::op::args::pattern!($okind s)) => Some(s),
                        Some(_) => return Err($crate::op::ArgError::Missing { operand: stringify!($opt) }),
                        None => None,
                    };
                )*
                Ok(Self { $($req,)* $($opt,)* $($scalar: $default,)* })
            }

            fn set_scalar(&mut self, name: &str, value: f32) -> bool {
                let _ = value;
                match name {
                    $(stringify!($scalar) => { self.$scalar = value; true })*
                    _ => false,
                }
            }
        }

        const _: () = assert!(<$name<'_> as $crate::op::Args<'_>>::OPERANDS.len() <= $crate::op::MAX_OPERANDS);
    };
}
macro_rules! view {
    (input $life:lifetime) => { $crate::Slice<$life> };
    (output $life:lifetime) => { $crate::SliceMut<$life> };
}
macro_rules! output {
    (input) => {
        false
    };
    (output) => {
        true
    };
}
macro_rules! pattern {
    (input $s:ident) => {
        $crate::op::View::In($s)
    };
    (output $s:ident) => {
        $crate::op::View::Out($s)
    };
}
pub(super) use {args, output, pattern, view};
