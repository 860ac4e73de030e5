//! A run against an earlier one on the same class of machine.

use crate::record::{Record, Row};
use std::collections::HashMap;

/// A row that both runs have.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Change {
    /// Index of the row in the new run.
    pub(crate) row: usize,
    /// Median then.
    pub(crate) old_ns: f64,
    /// Median now over median then: above 1, slower.
    pub(crate) ratio: f64,
}

/// How a run differs from an earlier one.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Changes {
    /// Rows that both have, slowest first.
    pub(crate) both: Vec<Change>,
    /// Rows that only the new run has.
    pub(crate) added: usize,
    /// Rows that only the old run has: `problem` and kernel.
    pub(crate) gone: Vec<String>,
}

impl Changes {
    /// Compares row by row: problem, backend, kernel, variant. Only problems that the new run measured count as gone.
    pub(crate) fn of(old: &Record, new: &[Row]) -> Self {
        let before: HashMap<_, _> = old.rows.iter().map(|row| (row.key(), row.median_ns)).collect();
        let now: HashMap<_, _> = new.iter().map(|row| (row.key(), row.median_ns)).collect();
        let measured: std::collections::HashSet<_> = new.iter().map(|row| &*row.problem).collect();
        let mut both: Vec<Change> = new
            .iter()
            .enumerate()
            .filter_map(|(at, row)| {
                let old_ns = *before.get(&row.key())?;
                Some(Change { row: at, old_ns, ratio: row.median_ns / old_ns })
            })
            .collect();
        both.sort_by(|a, b| b.ratio.total_cmp(&a.ratio));
        let gone = old.rows.iter().filter(|row| measured.contains(&*row.problem) && !now.contains_key(&row.key()));
        Self {
            added: new.len() - both.len(),
            gone: gone.map(|row| format!("{}  {}", row.problem, row.label())).collect(),
            both,
        }
    }

    /// Rows that became slower by more than `threshold`, slowest first.
    pub(crate) fn slower(&self, threshold: f64) -> impl Iterator<Item = &Change> {
        self.both.iter().filter(move |change| change.ratio > threshold)
    }

    /// Rows that became faster by more than `threshold`, least first.
    pub(crate) fn faster(&self, threshold: f64) -> impl Iterator<Item = &Change> {
        self.both.iter().filter(move |change| change.ratio * threshold < 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record;

    #[test]
    fn rows_are_compared_by_what_they_measure() {
        let old = record::tests::sample();
        let mut new = old.rows.clone();
        new[0].median_ns *= 1.2;
        new[1].median_ns /= 1.5;
        let mut other = new[0].clone();
        other.variant = 7;
        new.push(other);
        let changes = Changes::of(&old, &new);
        assert_eq!((changes.added, changes.gone.len()), (1, 0));
        assert_eq!(changes.slower(1.1).map(|change| change.row).collect::<Vec<_>>(), [0]);
        assert_eq!(changes.faster(1.1).map(|change| change.row).collect::<Vec<_>>(), [1]);
        assert_eq!(changes.slower(1.25).count(), 0);
    }

    #[test]
    fn a_kernel_that_is_gone_is_named_a_problem_not_asked_is_not() {
        let old = record::tests::sample();
        let changes = Changes::of(&old, &old.rows[..1]);
        assert_eq!(changes.gone, ["gemm 1x256x256x256 f32:f32:f32  simple#1"]);
        let mut elsewhere = old.rows[0].clone();
        elsewhere.problem = "softmax 1x1 f32:f32".into();
        assert_eq!(Changes::of(&old, &[elsewhere]), Changes { added: 1, ..Changes::default() });
    }
}
