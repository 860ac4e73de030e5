//! Random problems of every op, by every kernel of this backend, in every variant, against the reference.

fn main() -> std::process::ExitCode {
    kp_testkit::random(kp_vulkan::BACKEND, 3)
}
