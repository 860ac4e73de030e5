//! Every kernel of this backend, in every variant, against the reference.

fn main() -> std::process::ExitCode {
    kp_testkit::Suite::new(kp_cpu::BACKEND).always_there().main()
}
