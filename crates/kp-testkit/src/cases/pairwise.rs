//! Rows in which every pair of levels of every two factors occurs.

use crate::fill::{Fill, FillKind};

/// Problem lines that start with `op` and hold one word of each factor, so that any two words of different factors
/// that `valid` accepts together in some line occur together in a line. An empty word leaves the option out.
///
/// Greedy: each line starts from a pair that is still missing and takes what covers most other missing pairs.
pub fn lines(op: &str, factors: &[Vec<String>], valid: impl Fn(&str) -> bool) -> Vec<String> {
    let mut fill = Fill::new(FillKind::Exact, 0x5eed);
    let mut missing: Vec<[(usize, usize); 2]> = Vec::new();
    for (f, levels) in factors.iter().enumerate() {
        for (g, others) in factors.iter().enumerate().skip(f + 1) {
            missing.extend((0..levels.len()).flat_map(|l| (0..others.len()).map(move |o| [(f, l), (g, o)])));
        }
    }
    let covers = |row: &[usize], pair: &[(usize, usize); 2]| pair.iter().all(|&(f, level)| row[f] == level);
    let text = |row: &[usize]| {
        let words = row.iter().zip(factors).map(|(&level, levels)| levels[level].as_str());
        [op].into_iter().chain(words.filter(|w| !w.is_empty())).collect::<Vec<_>>().join(" ")
    };
    let mut out: Vec<String> = Vec::new();
    while let Some(&pair) = missing.last() {
        let mut best: Option<(usize, Vec<usize>)> = None;
        for _ in 0..(WORK / missing.len()).clamp(LEAST, TRIES) {
            let mut row: Vec<usize> = factors.iter().map(|levels| fill.below(levels.len() as u64) as usize).collect();
            pair.iter().for_each(|&(f, level)| row[f] = level);
            let count = missing.iter().filter(|p| covers(&row, p)).count();
            if best.as_ref().is_none_or(|(most, _)| count > *most) && valid(&text(&row)) {
                best = Some((count, row));
            }
        }
        match best {
            Some((_, row)) => {
                missing.retain(|p| !covers(&row, p));
                out.push(text(&row));
            }
            // No line holds both: what excludes them is the op's own rule.
            None => {
                missing.pop();
            }
        }
    }
    out.dedup();
    out
}

/// Random completions of a pair before it is given up as impossible: fewer while many pairs are missing, since any
/// completion then covers some.
const TRIES: usize = 60;
const LEAST: usize = 12;
const WORK: usize = 60_000;

/// Words from text: one per blank-separated part, `-` standing for "left out".
pub fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(|w| if w == "-" { String::new() } else { w.to_owned() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_possible_pair_occurs() {
        let factors = [words("1x1 2x3 7x8"), words("f32 f16 bf16"), words("- mask=causal mask=full"), words("- lse")];
        let valid = |line: &str| !(line.contains("f16") && line.contains("lse"));
        let lines = lines("op", &factors, valid);
        assert!(lines.len() < 20 && lines.iter().all(|l| valid(l)), "{lines:#?}");
        let has = |a: &str, b: &str| lines.iter().any(|l| l.split(' ').any(|w| w == a) && l.split(' ').any(|w| w == b));
        assert!(has("7x8", "f16") && has("f32", "lse") && has("2x3", "mask=causal") && !has("f16", "lse"));
    }
}
