//! What a compiler's log must not say.

use kp_nvidia::compile::{Listed, Report, warnings};
use std::collections::BTreeMap;

/// What the build costs, and what is wrong with it.
pub(crate) fn faults(log: &str, listed: &Listed) -> (Report, Vec<String>) {
    let mut faults: Vec<String> = warnings(log).map(str::to_owned).collect();
    let entry = listed.build.entry;
    let Some(report) = Report::of(log, entry) else {
        faults.push(format!("there is no kernel {entry:?} in it"));
        return (Report::default(), faults);
    };
    if report.leaves_registers() && listed.local_memory.is_none() {
        faults.push(format!("it uses local memory: {report}"));
    }
    (report, faults)
}

/// Reasons for local memory that no build of their kernel needs any more. Each build comes with whether it uses some.
pub(crate) fn stale_reasons<'a>(builds: impl Iterator<Item = (&'a Listed, bool)>) -> Vec<String> {
    let mut reasons = BTreeMap::new();
    for (listed, uses) in builds {
        if let Some(reason) = listed.local_memory {
            *reasons.entry((listed.kernel, reason)).or_insert(false) |= uses;
        }
    }
    let stale = reasons.into_iter().filter(|(_, needed)| !needed);
    stale
        .map(|((kernel, reason), _)| {
            format!("{kernel}: no build uses local memory, but there is a reason to: {reason}")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kp_hal::Variant;
    use kp_nvidia::compile::{Build, Source};

    static SOURCE: Source = Source { name: "kernels/x.cu", text: "", headers: &[] };

    fn judged(stack: u32, remark: &str, reason: Option<&'static str>) -> Vec<String> {
        let build = Build { source: &SOURCE, entry: "k", defines: Vec::new() };
        let log = format!(
            "{remark}ptxas info    : Compiling entry function 'k' for 'sm_80'\n\
             ptxas info    : Function properties for k\n\
             ptxas         .     {stack} bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
             ptxas info    : Used 30 registers, used 1 barriers, 256 bytes smem\n"
        );
        faults(&log, &Listed { local_memory: reason, ..Listed::new("x", Variant(0), build) }).1
    }

    #[test]
    fn local_memory_needs_a_reason() {
        assert!(judged(0, "", None).is_empty());
        assert!(judged(0, "", Some("it is faster")).is_empty());
        assert!(judged(8, "", Some("it is faster")).is_empty());
        let spilled =
            "it uses local memory: 30 registers, 8 bytes stack, 0 stored and 0 loaded by spills, 256 bytes shared";
        assert_eq!(judged(8, "", None), [spilled]);
    }

    #[test]
    fn a_reason_needs_local_memory_somewhere() {
        let listed = |kernel, reason| {
            let build = Build { source: &SOURCE, entry: "k", defines: Vec::new() };
            Listed { local_memory: reason, ..Listed::new(kernel, Variant(0), build) }
        };
        let (a, b, c) = (listed("a", Some("it is faster")), listed("b", Some("it is faster")), listed("c", None));
        let stale = stale_reasons([(&a, false), (&b, false), (&a, true), (&c, false)].into_iter());
        assert_eq!(stale, ["b: no build uses local memory, but there is a reason to: it is faster"]);
    }

    #[test]
    fn remarks_and_absence_are_faults() {
        let remark = "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored\n";
        assert_eq!(judged(0, remark, None), [remark.trim_end()]);
        let build = Build { source: &SOURCE, entry: "l", defines: Vec::new() };
        assert_eq!(faults("", &Listed::new("x", Variant(0), build)).1, ["there is no kernel \"l\" in it"]);
    }
}
