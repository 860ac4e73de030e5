//! The CPU backend of kp: every op on any machine.
