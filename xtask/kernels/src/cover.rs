//! Which of a kernel's builds a check compiles.
//!
//! A build is a variant's tile in one of the forms that people ask for, so there are as many as the product of both. What goes wrong
//! in one goes wrong for one of its macros, or for two that do not go together: a type that is too wide for a tile's registers, an
//! epilogue that a tile cannot hold. So a check takes each variant, and each two macros that some build has, but not all builds.

use kp_hal::Variant;
use kp_nvidia::compile::Listed;
use std::collections::{BTreeMap, BTreeSet};

/// What a check wants to see compiled at least once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Trait {
    Variant(Variant),
    Pair(usize, usize),
}

/// The places in `builds`, of one kernel, of a few that have all of what any of them has.
pub(crate) fn cover(builds: &[&Listed]) -> Vec<usize> {
    let mut numbers = BTreeMap::new();
    let of = |listed: &Listed, numbers: &mut BTreeMap<_, usize>| {
        let defines = listed.build.defines.iter().map(|(name, value)| (*name, value.clone()));
        // One source may hold several kernels.
        let macros = defines.chain([("entry", listed.build.entry.to_owned())]).map(|one| {
            let next = numbers.len();
            *numbers.entry(one).or_insert(next)
        });
        let macros: Vec<usize> = macros.collect();
        let pairs =
            macros.iter().flat_map(|&a| macros.iter().filter(move |&&b| a < b).map(move |&b| Trait::Pair(a, b)));
        pairs.chain([Trait::Variant(listed.variant)]).collect::<BTreeSet<Trait>>()
    };
    let traits: Vec<BTreeSet<Trait>> = builds.iter().map(|listed| of(listed, &mut numbers)).collect();
    let mut left: BTreeSet<Trait> = traits.iter().flatten().copied().collect();
    let mut chosen = BTreeSet::new();
    // The one that adds most, the first of several: near the fewest, and the same every time.
    while !left.is_empty() {
        let adds = |place: &usize| traits[*place].iter().filter(|t| left.contains(t)).count();
        let best = (0..builds.len()).rev().max_by_key(adds).expect("what is left is of some build");
        left.retain(|t| !traits[best].contains(t));
        chosen.insert(best);
    }
    chosen.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kp_nvidia::compile::{Build, Source};

    static SOURCE: Source = Source { name: "kernels/x.cu", text: "", headers: &[] };

    fn listed(variant: u8, defines: &[(&'static str, &str)]) -> Listed {
        let defines = defines.iter().map(|&(name, value)| (name, value.to_owned())).collect();
        Listed::new("x", Variant(variant), Build { source: &SOURCE, entry: "k", defines })
    }

    #[test]
    fn every_variant_and_every_two_macros_are_there() {
        let forms = || (0..4_u8).flat_map(|a| (0..3).flat_map(move |b| (0..2).map(move |c| [a, b, c])));
        let digits = ["0", "1", "2", "3"];
        let of = |[a, b, c]: [u8; 3]| {
            let [x, y, z] = [a, b, c].map(|i| digits[usize::from(i)]);
            listed(a, &[("A", x), ("B", y), ("C", z)])
        };
        let all: Vec<Listed> = forms().map(of).collect();
        let chosen = cover(&all.iter().collect::<Vec<_>>());
        assert!((12..=14).contains(&chosen.len()), "of 24, which have 12 pairs of A and B: {}", chosen.len());
        let has = |places: &[usize], a: (usize, u8), b: (usize, u8)| {
            let forms: Vec<[u8; 3]> = forms().collect();
            places.iter().any(|&place| forms[place][a.0] == a.1 && forms[place][b.0] == b.1)
        };
        for a in 0..4 {
            assert!((0..3).all(|b| has(&chosen, (0, a), (1, b))) && (0..2).all(|c| has(&chosen, (0, a), (2, c))));
        }
        assert!((0..3).all(|b| (0..2).all(|c| has(&chosen, (1, b), (2, c)))));
    }

    #[test]
    fn a_variant_that_no_macro_tells_apart_is_there() {
        let same = [("A", "0"), ("B", "0")];
        let all = [listed(0, &same), listed(1, &same), listed(1, &same)];
        assert_eq!(cover(&all.iter().collect::<Vec<_>>()), [0, 1]);
    }
}
