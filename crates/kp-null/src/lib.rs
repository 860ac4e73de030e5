//! A backend that implements everything and runs nothing: a skeleton to copy, a mock for tests.
