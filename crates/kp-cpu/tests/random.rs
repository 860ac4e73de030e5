//! Random problems of every op, by every kernel of this backend, in every variant, against the reference.

fn main() -> std::process::ExitCode {
    kp_testkit::random(kp_testkit::Suite::new(kp_cpu::BACKEND).always_there(), 32)
}
