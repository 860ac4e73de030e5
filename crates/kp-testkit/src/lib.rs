//! Reference, cases, vectors and the conformance suite that any backend can run.
