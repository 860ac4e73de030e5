//! The set of k buckets that costs least, exactly.

use std::fmt;

/// A size and how often it was seen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Observed {
    /// The size.
    pub size: u32,
    /// How often.
    pub count: u64,
}

/// Sizes to pad to, ascending and distinct.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BucketSet {
    sizes: Vec<u32>,
    cost: u128,
}

impl BucketSet {
    /// The buckets, ascending.
    pub fn sizes(&self) -> &[u32] {
        &self.sizes
    }

    /// What all observations cost together, each at the cost of its bucket.
    pub fn cost(&self) -> u128 {
        self.cost
    }

    /// The smallest bucket that holds `size`, or `None` past the largest.
    pub fn round_up(&self, size: u32) -> Option<u32> {
        self.sizes.get(self.sizes.partition_point(|&bucket| bucket < size)).copied()
    }
}

/// A cost that falls where sizes grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadCost {
    /// The smaller size.
    pub size: u32,
    /// What it costs.
    pub cost: u64,
    /// The larger size.
    pub larger: u32,
    /// The less that that costs.
    pub larger_cost: u64,
}

impl std::error::Error for BadCost {}

impl fmt::Display for BadCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, cost, larger, larger_cost } = self;
        write!(f, "cost must not fall with size, but {size} costs {cost} and {larger} costs {larger_cost}")
    }
}

/// The at most `k` buckets for which Σ count · cost(bucket of size) is least; the smaller set among equals.
///
/// `observed` may come in any order and repeat sizes; what was seen 0 times is left out. `cost` may be any function
/// that does not fall: elements, bytes, or nanoseconds that were measured. The result is empty if nothing was
/// observed or `k` is 0. Counts must add up to less than 2⁶⁴; beyond that they saturate.
///
/// With n distinct sizes it takes O(k · n · log n) time and O(k · n) memory. Let s₁ < … < sₙ, C(i) the count of the
/// first i and f = cost. Some best set consists of observed sizes, since lowering a bucket to the largest size it
/// holds costs no more. So, with D(j, i) the least cost of the first i sizes in j buckets,
///
/// ```text
/// D(j, i) = min over l < i of  D(j − 1, l) + w(l, i),      w(l, i) = (C(i) − C(l)) · f(sᵢ)
/// ```
///
/// For a ≤ b ≤ c ≤ d, w(a, d) + w(b, c) − w(a, c) − w(b, d) = (C(b) − C(a)) · (f(s_d) − f(s_c)) ≥ 0 because counts
/// are not negative and f does not fall. This is the quadrangle inequality, by which the leftmost best l does not
/// fall as i grows; so finding it for the middle i halves the range of l for the others, and each j takes O(n log n).
/// All sums are whole numbers of 128 bits, which the product of a total count and a cost cannot exceed.
///
/// # Errors
/// [`BadCost`] if `cost` falls between two observed sizes.
pub fn solve(observed: &[Observed], k: usize, cost: impl Fn(u32) -> u64) -> Result<BucketSet, BadCost> {
    let sizes = merged(observed);
    let costs: Vec<u64> = sizes.iter().map(|seen| cost(seen.size)).collect();
    if let Some(i) = costs.windows(2).position(|pair| pair[1] < pair[0]) {
        let (size, larger) = (sizes[i].size, sizes[i + 1].size);
        return Err(BadCost { size, cost: costs[i], larger, larger_cost: costs[i + 1] });
    }
    let n = sizes.len();
    let k = k.min(n);
    if k == 0 {
        return Ok(BucketSet::default());
    }
    let mut before = Vec::with_capacity(n + 1);
    before.push(0_u64);
    for seen in &sizes {
        before.push(before[before.len() - 1].saturating_add(seen.count));
    }
    let weight = |l: usize, i: usize| u128::from(before[i] - before[l]) * u128::from(costs[i - 1]);

    // Row j of `split` holds the best l for each i; one bucket has l = 0.
    let mut least: Vec<u128> = (0..=n).map(|i| if i == 0 { 0 } else { weight(0, i) }).collect();
    let mut splits = Vec::with_capacity(k - 1);
    let mut best = (least[n], 1);
    for buckets in 2..=k {
        let mut next = vec![u128::MAX; n + 1];
        let mut split = vec![0_u32; n + 1];
        // `buckets` non-empty groups need at least as many sizes, and l of them at least `buckets - 1`.
        fill(&least, &weight, &mut next, &mut split, (buckets, n), (buckets - 1, n - 1));
        least = next;
        splits.push(split);
        if least[n] < best.0 {
            best = (least[n], buckets);
        }
    }

    let (cost, buckets) = best;
    let mut chosen = Vec::with_capacity(buckets);
    let mut i = n;
    for split in splits[..buckets - 1].iter().rev() {
        chosen.push(sizes[i - 1].size);
        i = split[i] as usize;
    }
    chosen.push(sizes[i - 1].size);
    chosen.reverse();
    Ok(BucketSet { sizes: chosen, cost })
}

/// Fills `next[i]` and `split[i]` for i in `first ..= last`, whose best l lie in `low ..= high`.
fn fill(
    least: &[u128],
    weight: &impl Fn(usize, usize) -> u128,
    next: &mut [u128],
    split: &mut [u32],
    (first, last): (usize, usize),
    (low, high): (usize, usize),
) {
    if first > last {
        return;
    }
    let middle = first.midpoint(last);
    let mut best = low;
    let lefts = low..=high.min(middle - 1);
    for (l, cost) in lefts.map(|l| (l, least[l] + weight(l, middle))) {
        if cost < next[middle] {
            (next[middle], best) = (cost, l);
        }
    }
    split[middle] = best as u32;
    fill(least, weight, next, split, (first, middle - 1), (low, best));
    fill(least, weight, next, split, (middle + 1, last), (best, high));
}

/// Ascending, each size once, none seen 0 times.
fn merged(observed: &[Observed]) -> Vec<Observed> {
    let mut sizes: Vec<Observed> = observed.iter().copied().filter(|seen| seen.count > 0).collect();
    sizes.sort_unstable();
    sizes.dedup_by(|from, into| {
        let same = from.size == into.size;
        if same {
            into.count = into.count.saturating_add(from.count);
        }
        same
    });
    sizes
}
