//! Every kernel of this backend, in every variant, against the reference.

fn main() -> std::process::ExitCode {
    kp_testkit::main(kp_vulkan::BACKEND)
}
