//! Libraries opened by name, and the functions wanted of them, all found before the first is called.
//!
//! cudarc declares the types and signatures; it is not asked to load, because it panics on a library or symbol
//! that is missing, and because its functions return Rust enums, of which a newer driver knows more values.

use kp_hal::{ErrorKind, Result};
use libloading::Library;
use std::ffi::OsStr;

/// Opens the first of `names` that the system's loader finds; it stays open for as long as the process lives.
///
/// # Errors
/// `Unavailable` for `what`, naming all that was looked for.
pub(crate) fn open(what: &'static str, names: &[impl AsRef<OsStr>]) -> Result<&'static Library> {
    let mut failed = Vec::new();
    for name in names {
        // SAFETY: the vendor's library, whose initialisers any CUDA program runs.
        match unsafe { Library::new(name.as_ref()) } {
            Ok(library) => return Ok(Box::leak(Box::new(library))),
            Err(e) => failed.push((name.as_ref().display().to_string(), cause(&e))),
        }
    }
    Err(ErrorKind::Unavailable { what, why: looked_for(&failed).into() }.into())
}

/// The loader's own words, without libloading's around them.
fn cause(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

/// Names and what became of each; what became of several in a row is said once.
fn looked_for(failed: &[(String, String)]) -> String {
    // Loaders begin with the name, which the reader has just seen.
    let plain =
        |(name, cause): &(String, String)| cause.trim_start_matches(name.as_str()).trim_start_matches(": ").to_owned();
    let groups = failed.chunk_by(|one, next| plain(one) == plain(next)).map(|group| {
        let names: Vec<&str> = group.iter().map(|(name, _)| name.as_str()).collect();
        format!("{}: {}", names.join(", "), plain(&group[0]))
    });
    format!("looked for {}", groups.collect::<Vec<_>>().join("; "))
}

/// The address of `symbol`.
///
/// # Errors
/// `Unavailable` for `what`, naming the symbol.
///
/// # Safety
/// `F` is the type of a pointer to that function.
pub(crate) unsafe fn symbol<F: Copy>(what: &'static str, library: &'static Library, symbol: &'static str) -> Result<F> {
    // SAFETY: the caller's promise.
    match unsafe { library.get::<F>(symbol) } {
        Ok(found) => Ok(*found),
        Err(_) => {
            let why = format!("the library has no {symbol}: it is too old, or not what its name says");
            Err(ErrorKind::Unavailable { what, why: why.into() }.into())
        }
    }
}

/// Declares a table of one library's functions: a struct of pointers, `load` to fill it, and a method for each.
///
/// A method returns `$status { call, code }`. Each signature is compared with cudarc's when compiling.
macro_rules! table {
    (
        $(#[$doc:meta])*
        $vis:vis struct $table:ident: $status:ident of $sys:ident, $result:ident;
        $(fn $name:ident($($arg:ident: $type:ty),* $(,)?);)*
    ) => {
        $(#[$doc])*
        #[allow(non_snake_case, reason = "the library's own names")]
        #[derive(Clone, Copy, Debug)]
        $vis struct $table { $($name: unsafe extern "C" fn($($type),*) -> i32,)* }

        #[allow(non_snake_case, clippy::too_many_arguments, clippy::missing_safety_doc, reason = "the library's own names and shapes")]
        impl $table {
            /// Finds every function.
            ///
            /// # Errors
            /// `Unavailable` for `what`, naming the function that is missing.
            $vis fn load(what: &'static str, library: &'static libloading::Library) -> kp_hal::Result<Self> {
                $(const _: unsafe fn($($type),*) -> $sys::$result = $sys::$name;)*
                Ok(Self {
                    // SAFETY: cudarc declares the function so, as was just compared; a C enum is an i32.
                    $($name: unsafe { $crate::driver::table::symbol(what, library, stringify!($name)) }?,)*
                })
            }

            $(
                /// The library's function of that name.
                ///
                /// # Safety
                /// What the library's documentation asks.
                #[inline]
                $vis unsafe fn $name(&self, $($arg: $type),*) -> $status {
                    // SAFETY: the caller's, as the library's documentation of this function asks.
                    $status { call: stringify!($name), code: unsafe { (self.$name)($($arg),*) } }
                }
            )*
        }
    };
}
pub(crate) use table;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_of_several_names_is_said_once() {
        let pair = |name: &str, cause: &str| (name.to_owned(), cause.to_owned());
        let missing = |name: &str| pair(name, &format!("{name}: cannot open shared object file"));
        assert_eq!(
            looked_for(&[missing("a.so.1"), missing("a.so"), pair("/x/a.so", "/x/a.so: wrong ELF class")]),
            "looked for a.so.1, a.so: cannot open shared object file; /x/a.so: wrong ELF class"
        );
    }
}
