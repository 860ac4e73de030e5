//! What a kernel costs, read from the compiler's log.

use std::fmt;

/// The assembler's account of one kernel and the functions that it calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Registers of one thread.
    pub registers: u32,
    /// Local memory of one thread, in bytes: spilled registers, and arrays indexed by what is not known at compile time.
    pub stack_bytes: u32,
    /// Stores to spilled registers, in bytes of one thread.
    pub spill_store_bytes: u32,
    /// Loads of spilled registers, in bytes of one thread.
    pub spill_load_bytes: u32,
    /// Shared memory that the source declares with a size, in bytes of one block.
    pub shared_bytes: u32,
    /// Barriers of one block.
    pub barriers: u32,
}

impl Report {
    /// Those of the kernel `entry`, with the functions that it calls, from a log of `ptxas -v`. `None` if the log does not
    /// account for such a kernel.
    ///
    /// ```text
    /// ptxas info    : Compiling entry function 'k' for 'sm_90a'
    /// ptxas info    : Function properties for k
    /// ptxas         .     8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
    /// ptxas info    : Used 30 registers, used 1 barriers, 8 bytes cumulative stack size, 256 bytes smem
    /// ptxas info    : Function properties for called_by_k
    /// ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
    /// ```
    pub fn of(log: &str, entry: &str) -> Option<Self> {
        let heading = "Compiling entry function '";
        let its_own = format!("{heading}{entry}' ");
        let lines = log.lines().skip_while(|line| !line.contains(&its_own)).skip(1);
        let mut found = Self::default();
        for part in lines.take_while(|line| !line.contains(heading)).flat_map(|line| line.split([':', '.', ','])) {
            match part.split_whitespace().collect::<Vec<_>>()[..] {
                // Frames of functions that call one another lie in a row; the sum comes last, if there is more than one.
                [bytes, "bytes", "stack", "frame"] | [bytes, "bytes", "cumulative", "stack", "size"] => {
                    found.stack_bytes = found.stack_bytes.max(bytes.parse().ok()?);
                }
                [bytes, "bytes", "spill", "stores"] => found.spill_store_bytes += bytes.parse::<u32>().ok()?,
                [bytes, "bytes", "spill", "loads"] => found.spill_load_bytes += bytes.parse::<u32>().ok()?,
                ["Used", count, "registers"] => found.registers = count.parse().ok()?,
                ["used", count, "barriers"] => found.barriers = count.parse().ok()?,
                [bytes, "bytes", "smem"] => found.shared_bytes = bytes.parse().ok()?,
                _ => {}
            }
        }
        (found.registers > 0).then_some(found)
    }

    /// Whether a thread goes to memory for what was meant to be in registers.
    pub fn leaves_registers(&self) -> bool {
        self.stack_bytes + self.spill_store_bytes + self.spill_load_bytes > 0
    }
}

/// `168 registers, 48 bytes stack, 40 stored and 44 loaded by spills, 1024 bytes shared`.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} registers", self.registers)?;
        if self.leaves_registers() {
            let Self { stack_bytes, spill_store_bytes, spill_load_bytes, .. } = self;
            write!(
                f,
                ", {stack_bytes} bytes stack, {spill_store_bytes} stored and {spill_load_bytes} loaded by spills"
            )?;
        }
        write!(f, ", {} bytes shared", self.shared_bytes)
    }
}

/// The lines of a log that say something went wrong without being an error: warnings of either compiler, and remarks on
/// what makes a kernel slow, such as serialized `wgmma` (C7510 and its neighbours) or an ignored `setmaxnreg` (C7508).
///
/// Spills are left out: [`Report`] has them in numbers.
pub fn warnings(log: &str) -> impl Iterator<Item = &str> {
    let bad = |line: &&str| {
        let warning = line.contains("warning") && !line.contains("Registers are spilled to local memory");
        warning || line.contains("Potential Performance Loss")
    };
    log.lines().filter(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
ptxas warning : Registers are spilled to local memory in function 'k', 1164 bytes spill stores, 1280 bytes spill loads
ptxas info    : (C7517) warpgroup.wait is injected in around line 62 by compiler to allow use of registers
ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient
ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry.
a.cu(3): warning #177-D: variable \"x\" was declared but never referenced
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k_tail' for 'sm_90a'
ptxas info    : Function properties for k_tail
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
ptxas         .     1064 bytes stack frame, 1164 bytes spill stores, 1280 bytes spill loads
ptxas info    : Used 32 registers, used 2 barriers, 1088 bytes cumulative stack size, 256 bytes smem, 360 bytes cmem[0]
ptxas info    : Compile time = 199.001 ms
ptxas info    : Function properties for _Z6calledv
ptxas         .     24 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
";

    #[test]
    fn a_log_is_read_by_kernel() {
        let plain = Report { registers: 10, ..Report::default() };
        assert_eq!(Report::of(LOG, "k_tail"), Some(plain.clone()));
        assert!(!plain.leaves_registers());
        let spilled = Report {
            registers: 32,
            stack_bytes: 1088,
            spill_store_bytes: 1168,
            spill_load_bytes: 1288,
            shared_bytes: 256,
            barriers: 2,
        };
        assert!(spilled.leaves_registers());
        let text = "32 registers, 1088 bytes stack, 1168 stored and 1288 loaded by spills, 256 bytes shared";
        assert_eq!(spilled.to_string(), text);
        assert_eq!(Report::of(LOG, "k"), Some(spilled));
        assert_eq!(Report::of(LOG, "k_ta"), None);
        assert_eq!(Report::of("", "k"), None);
    }

    #[test]
    fn losses_and_warnings_stand_out() {
        let found: Vec<&str> = warnings(LOG).map(|line| &line[..24]).collect();
        assert_eq!(found, ["ptxas info    : (C7511) ", "ptxas info    : (C7508) ", "a.cu(3): warning #177-D:"]);
    }
}
