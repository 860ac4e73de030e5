//! Buckets against brute force, and the learner alone and under many threads.

use kp_core::buckets::{BadCost, Buckets, Observed, solve};
use proptest::prelude::*;
use std::{sync::Arc, thread};

/// The least cost over every subset of at most `k` observed sizes that holds the largest.
fn brute_force(observed: &[Observed], k: usize, cost: impl Fn(u32) -> u64) -> u128 {
    let sizes: Vec<u32> = observed.iter().filter(|seen| seen.count > 0).map(|seen| seen.size).collect();
    let subsets = (0_u32..1 << sizes.len()).filter(|set| set.count_ones() as usize <= k);
    let costs = subsets.filter_map(|set| {
        let buckets: Vec<u32> = sizes.iter().enumerate().filter(|(i, _)| set >> i & 1 == 1).map(|(_, &s)| s).collect();
        observed
            .iter()
            .filter(|seen| seen.count > 0)
            .map(|seen| {
                let bucket = buckets.iter().copied().filter(|&bucket| bucket >= seen.size).min()?;
                Some(u128::from(seen.count) * u128::from(cost(bucket)))
            })
            .sum::<Option<u128>>()
    });
    costs.min().unwrap_or(0)
}

fn observed() -> impl Strategy<Value = Vec<Observed>> {
    let one = (1_u32..200, 0_u64..50).prop_map(|(size, count)| Observed { size, count });
    prop::collection::vec(one, 0..11)
}

proptest! {
    #[test]
    fn no_set_is_better(observed in observed(), k in 1_usize..8, power in 0_u32..4, step in 1_u32..40) {
        // Powers, and a staircase with flat steps: what a tiled kernel costs.
        for cost in [&|s: u32| u64::from(s).pow(power), &|s: u32| u64::from(s.div_ceil(step))] as [&dyn Fn(u32) -> u64; 2] {
            let set = solve(&observed, k, cost).expect("both costs rise");
            prop_assert!(set.sizes().len() <= k);
            prop_assert!(set.sizes().is_sorted_by(|a, b| a < b));
            prop_assert_eq!(set.cost(), brute_force(&observed, k, cost));
            let paid: u128 = observed
                .iter()
                .filter(|seen| seen.count > 0)
                .map(|seen| u128::from(seen.count) * u128::from(cost(set.round_up(seen.size).expect("it was observed"))))
                .sum();
            prop_assert_eq!(set.cost(), paid);
        }
    }

    #[test]
    fn a_learner_always_rounds_up_and_repeats_itself(sizes in prop::collection::vec(0_u32..5000, 0..300), k in 1_usize..9) {
        let (one, other) = (Buckets::learn(k), Buckets::learn(k));
        for &size in &sizes {
            let bucket = one.pad(size);
            prop_assert!(bucket >= size);
            prop_assert_eq!(bucket, other.pad(size));
        }
        prop_assert!(one.sizes().len() <= k);
        prop_assert_eq!(one.waste().used, sizes.iter().map(|&size| u64::from(size)).sum::<u64>());
    }
}

#[test]
fn a_falling_cost_is_refused() {
    let observed = [1, 2, 3].map(|size| Observed { size, count: 1 });
    let cost = |size| if size == 3 { 1 } else { u64::from(size) };
    let bad = solve(&observed, 2, cost).expect_err("3 costs less than 2");
    assert_eq!(bad, BadCost { size: 2, cost: 2, larger: 3, larger_cost: 1 });
    assert_eq!(bad.to_string(), "cost must not fall with size, but 2 costs 2 and 3 costs 1");
}

#[test]
fn extremes_do_not_overflow() {
    let observed = [Observed { size: 1, count: u64::MAX }, Observed { size: u32::MAX, count: u64::MAX }];
    let set = solve(&observed, 1, |_| u64::MAX).expect("constant");
    assert_eq!((set.sizes(), set.cost()), (&[u32::MAX][..], u128::from(u64::MAX) * u128::from(u64::MAX)));
    assert_eq!(solve(&[], 3, u64::from).expect("nothing").sizes(), &[0_u32; 0]);
    assert_eq!(solve(&observed, 0, u64::from).expect("no bucket").sizes(), &[0_u32; 0]);
    let learner = Buckets::learn(2);
    learner.observe(u32::MAX);
    assert_eq!(learner.round_up(u32::MAX), u32::MAX);
    assert_eq!(learner.round_up((1 << 31) + 1), u32::MAX);
}

#[test]
fn sizes_that_repeat_become_buckets_exactly() {
    let learner = Buckets::learn(3);
    for i in 0..1024 {
        learner.observe([511, 1024, 30_000][i % 3]);
    }
    assert_eq!(learner.sizes(), [511, 1024, 30_000]);
    assert_eq!(learner.round_up(512), 1024);
    assert_eq!(learner.round_up(30_001), 32_768, "never seen: the next power of two");
    assert_eq!(learner.round_up(0), 0);
}

#[test]
fn what_was_learned_wastes_little() {
    // Lengths as chat traffic has them: many short, few long. 16 buckets against powers of two.
    let lengths = |i: u64| 1 + (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40).pow(2) as u32 % 4096;
    let learner = Buckets::learn(16);
    (0..4096).for_each(|i| learner.observe(lengths(i)));
    let (mut used, mut learned, mut powers) = (0, 0, 0);
    for size in (4096..8192).map(lengths) {
        used += u64::from(size);
        learned += u64::from(learner.round_up(size));
        powers += u64::from(size.next_power_of_two());
    }
    let (learned, powers) = (learned as f64 / used as f64, powers as f64 / used as f64);
    assert!(learned < 1.08 && powers > 1.3, "learned {learned:.3}, powers of two {powers:.3}");
}

#[test]
fn threads_lose_no_size_and_see_only_buckets() {
    let learner = Arc::new(Buckets::learn(4));
    let (threads, each) = (8, 4096);
    let workers: Vec<_> = (0..threads)
        .map(|t| {
            let learner = Arc::clone(&learner);
            thread::spawn(move || {
                for i in 0..each {
                    let size = 1 + (i * 31 + t * 7) % 1000;
                    assert!(learner.pad(size) >= size);
                }
            })
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().expect("no thread panics"));
    assert_eq!(learner.observed(), u64::from(threads * each));
    assert_eq!(learner.sketch().iter().map(|seen| seen.count).sum::<u64>(), u64::from(threads * each));
    let waste = learner.waste();
    assert!(waste.padded >= waste.used && waste.fraction() < 0.5, "{waste}");
}

#[test]
fn a_cost_that_panics_leaves_the_learner_usable() {
    let learner = Buckets::learn_cost(2, |size| if size == 13 { panic!("unlucky") } else { u64::from(size) });
    learner.observe(10);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| learner.observe(13)));
    assert!(panicked.is_err());
    assert_eq!(learner.round_up(10), 10);
    learner.observe(20);
    assert_eq!(learner.observed(), 3);
}
