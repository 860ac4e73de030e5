//! The plan cache keeps what is used and stays bounded.

mod common;

use common::engine;
use kp_core::{
    hal::op::{Gemm, GemmProblem},
    plan_cache::{CAPACITY, PlanCache},
};

#[test]
fn the_least_recently_used_plans_make_room() {
    let engine = engine();
    let cache = PlanCache::<Gemm>::default();
    let problem = |m: usize| -> GemmProblem { format!("gemm 1x{m}x16x16 f32:f32:f32").parse().expect("well formed") };
    let kernel = engine.candidates(&problem(1)).accepted[0];
    let plan = |m| {
        let problem = problem(m);
        cache.find_or(&problem, || kernel.kernel.plan(engine.device(), &problem, kernel.variant)).expect("planned")
    };
    // The first hundred are used again and again; the others once.
    for m in 1..=3 * CAPACITY {
        plan(m);
        plan(m % 100 + 1);
        assert!(cache.len() <= CAPACITY);
    }
    assert!((1..=100).all(|m| cache.find(&problem(m)).is_some()));
    assert!((101..=CAPACITY).all(|m| cache.find(&problem(m)).is_none()));
    assert!((3 * CAPACITY - 1000..=3 * CAPACITY).all(|m| cache.find(&problem(m)).is_some()));
}

#[test]
fn a_plan_begun_before_a_clearing_is_not_kept() {
    let engine = engine();
    let cache = PlanCache::<Gemm>::default();
    let problem: GemmProblem = "gemm 1x1x16x16 f32:f32:f32".parse().expect("well formed");
    let kernel = engine.candidates(&problem).accepted[0];
    let make = || kernel.kernel.plan(engine.device(), &problem, kernel.variant);
    let old = cache.find_or(&problem, || {
        cache.clear();
        make()
    });
    assert!(old.is_ok() && cache.find(&problem).is_none());
    let new = cache.find_or(&problem, make).expect("planned again");
    assert!(cache.find(&problem).is_some_and(|found| std::sync::Arc::ptr_eq(&found, &new)));
}

#[test]
fn a_failure_is_not_kept() {
    let cache = PlanCache::<Gemm>::default();
    let problem: GemmProblem = "gemm 1x1x16x16 f32:f32:f32".parse().expect("well formed");
    let failing = cache.find_or(&problem, || Err(kp_core::hal::ErrorKind::NotCapturable { what: "this" }.into()));
    assert!(failing.is_err() && cache.is_empty());
}
