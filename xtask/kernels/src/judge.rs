//! What a compiler's log must not say.

use kp_nvidia::compile::{Listed, Report, warnings};

/// What the build costs, and what is wrong with it.
pub(crate) fn faults(log: &str, listed: &Listed) -> (Report, Vec<String>) {
    let mut faults: Vec<String> = warnings(log).map(str::to_owned).collect();
    let entry = listed.build.entry;
    let Some(report) = Report::of(log, entry) else {
        faults.push(format!("there is no kernel {entry:?} in it"));
        return (Report::default(), faults);
    };
    match listed.local_memory {
        None if report.leaves_registers() => faults.push(format!("it uses local memory: {report}")),
        Some(reason) if !report.leaves_registers() => {
            faults.push(format!("it uses no local memory any more, but gives a reason to: {reason}"));
        }
        _ => {}
    }
    (report, faults)
}

#[cfg(test)]
mod tests {
    use super::*;
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
        faults(&log, &Listed { local_memory: reason, ..Listed::new("x", build) }).1
    }

    #[test]
    fn local_memory_needs_a_reason_and_a_reason_needs_it() {
        assert!(judged(0, "", None).is_empty());
        assert!(judged(8, "", Some("it is faster")).is_empty());
        let spilled =
            "it uses local memory: 30 registers, 8 bytes stack, 0 stored and 0 loaded by spills, 256 bytes shared";
        assert_eq!(judged(8, "", None), [spilled]);
        let stale = "it uses no local memory any more, but gives a reason to: it is faster";
        assert_eq!(judged(0, "", Some("it is faster")), [stale]);
    }

    #[test]
    fn remarks_and_absence_are_faults() {
        let remark = "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored\n";
        assert_eq!(judged(0, remark, None), [remark.trim_end()]);
        let build = Build { source: &SOURCE, entry: "l", defines: Vec::new() };
        assert_eq!(faults("", &Listed::new("x", build)).1, ["there is no kernel \"l\" in it"]);
    }
}
