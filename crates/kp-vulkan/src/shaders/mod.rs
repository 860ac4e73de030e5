//! SPIR-V, compiled from `kernels/` by `cargo xtask shaders` and embedded.

#[cfg(test)]
mod source;

use kp_hal::source_hash;

/// One compiled shader.
#[derive(Debug)]
pub(crate) struct Shader {
    /// `<op>/<stem>`.
    pub(crate) name: &'static str,
    pub(crate) spirv: &'static [u8],
    /// The same with its first constants among the arguments, if there is such a form.
    pub(crate) open: Option<Open>,
}

/// A shader's form that is compiled once for many problems: constants below `count` follow the arguments as numbers. A driver for
/// processors takes longer to compile most problems than to run them.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) spirv: &'static [u8],
    pub(crate) count: usize,
    /// Those that are constants all the same.
    pub(crate) but: &'static [usize],
    /// Others that follow as numbers too, in this order.
    pub(crate) and: &'static [usize],
}

impl Shader {
    /// A hash of its code.
    pub(crate) const fn hash(&self) -> u64 {
        source_hash(self.spirv)
    }
}

/// The shader that `cargo xtask shaders` made of a source.
macro_rules! shader {
    ($op:literal, $stem:literal) => {
        $crate::shaders::shader!(@ $op, $stem, None)
    };
    // With a form, `STEM_open`, in which that many constants are numbers.
    ($op:literal, $stem:literal, open $count:literal but $but:expr) => {
        $crate::shaders::shader!($op, $stem, open $count but $but, and [])
    };
    ($op:literal, $stem:literal, open $count:literal but $but:expr, and $and:expr) => {
        $crate::shaders::shader!(@ $op, $stem, Some($crate::shaders::Open {
            spirv: $crate::shaders::shader!(@spirv $op, $stem, "_open"),
            count: $count,
            but: &$but,
            and: &$and,
        }))
    };
    (@ $op:literal, $stem:literal, $open:expr) => {
        $crate::shaders::Shader {
            name: concat!($op, "/", $stem),
            spirv: $crate::shaders::shader!(@spirv $op, $stem, ""),
            open: $open,
        }
    };
    (@spirv $op:literal, $stem:literal, $form:literal) => {
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/spirv/", $op, "_", $stem, $form, ".spv"))
    };
}
pub(crate) use shader;

#[cfg(test)]
mod tests {
    use super::source;
    use std::{fs, path::Path};

    /// What is embedded was compiled from the sources as they are: `cargo xtask shaders` wrote down their hashes.
    #[test]
    fn shaders_are_those_of_their_sources() {
        let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels");
        let mut list = Vec::new();
        for op in fs::read_dir(&kernels).expect("the sources").flatten() {
            for file in fs::read_dir(op.path().join("glsl")).into_iter().flatten().flatten() {
                let (op, file) = (op.file_name().into_string(), file.file_name().into_string());
                let path = format!("{}/glsl/{}", op.expect("ASCII"), file.expect("ASCII"));
                if !path.ends_with(".comp") {
                    continue;
                }
                let text = source::expanded(&path, &|path| fs::read_to_string(kernels.join(path)).ok()).expect(&path);
                for (suffix, defines) in source::forms(&text) {
                    let hash = source::hash(source::defined(&text, &defines).as_bytes());
                    list.push(format!("{} {hash:016x}\n", source::name(&path, &suffix)));
                }
            }
        }
        list.sort();
        let mut written: Vec<String> =
            include_str!("../spirv/sources.txt").lines().map(|line| format!("{line}\n")).collect();
        written.sort();
        assert_eq!(list, written, "run cargo xtask shaders");
    }

    #[test]
    fn a_file_is_included_once() {
        let read = |path: &str| {
            Some(match path {
                "a" => "#version 460\n#include \"b\"\n#include \"c\"\n// also x: N=1 M=2\n".to_owned(),
                "b" => "#include \"c\"\nb\n".to_owned(),
                "c" => "c\n".to_owned(),
                _ => return None,
            })
        };
        let text = source::expanded("a", &read).expect("all are there");
        assert_eq!(text, "#version 460\nc\nb\n// also x: N=1 M=2\n");
        let forms = source::forms(&text);
        assert_eq!(forms.len(), 2);
        assert!(source::defined(&text, &forms[1].1).starts_with("#version 460\n#define N 1\n#define M 2\nc\n"));
        assert_eq!(source::name("gemm/glsl/simt.comp", "x"), "gemm_simt_x");
        assert!(source::expanded("d", &read).is_err());
    }
}
