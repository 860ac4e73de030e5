//! Failures that are known: `tests/expected_failures.toml` of a backend's crate.

/// Patterns of names of tests that must fail, each with its reason.
///
/// ```toml
/// [[failure]]
/// pattern = "cpu/gemm/portable#0/gemm 1x1x1x1 f16:f16:f16 acc=f16"
/// reason = "sums are kept in f32 until the compiler can do better"
/// ```
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected(Vec<(String, String)>);

impl Expected {
    /// Reads the file's text.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let document: toml_edit::DocumentMut = text.parse().map_err(|e| format!("expected failures: {e}"))?;
        if let Some((key, _)) = document.iter().find(|(key, _)| *key != "failure") {
            return Err(format!("expected failures: unknown key `{key}`, want [[failure]]"));
        }
        let Some(item) = document.get("failure") else { return Ok(Self::default()) };
        let list = item.as_array_of_tables().ok_or("expected failures: want [[failure]] with two brackets")?;
        let entries = list.iter().enumerate().map(|(i, table)| {
            let text = |key: &str| {
                let value = table.get(key).and_then(|v| v.as_str()).filter(|v| !v.trim().is_empty());
                value.map(str::to_owned).ok_or(format!("expected failures: entry {} has no {key}", i + 1))
            };
            Ok((text("pattern")?, text("reason")?))
        });
        entries.collect::<Result<_, String>>().map(Self)
    }

    /// Why the test of this name is expected to fail, if it is.
    pub(crate) fn reason(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(pattern, _)| name.contains(pattern.as_str())).map(|(_, reason)| reason.as_str())
    }

    /// Entries that fit none of `names`, as failures.
    pub(crate) fn unused(&self, names: &[String]) -> Vec<(String, String)> {
        let fits = |pattern: &str| names.iter().any(|name| name.contains(pattern));
        let unused = self.0.iter().filter(|(pattern, _)| !fits(pattern));
        unused.map(|(pattern, _)| (format!("expected failure `{pattern}`"), "fits no test".to_owned())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_need_a_pattern_and_a_reason() {
        let good = Expected::parse("[[failure]]\npattern = \"gemm/x#0\"\nreason = \"slow\"\n").expect("good");
        assert_eq!(good.reason("cpu/gemm/x#0/gemm 1x1x1x1"), Some("slow"));
        assert_eq!(good.reason("cpu/gemm/x#1/gemm 1x1x1x1"), None);
        assert_eq!(good.unused(&["cpu/gemm/x#1/a".into()]).len(), 1);
        assert!(Expected::parse("").is_ok());
        for bad in ["[[failure]]\npattern = \"a\"", "[failure]\npattern = \"a\"", "[[failures]]", "[["] {
            assert!(Expected::parse(bad).is_err(), "{bad}");
        }
    }
}
