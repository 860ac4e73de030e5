//! Softmax of a panel's block: scores become weights, 2^(score − base), pairs of keys as an [engine](Engine) wants them.
//!
//! A row's base is not its largest score but follows it once that has grown by a factor of 2⁸ ([`SLACK`]): sums are seldom rescaled, and
//! no weight is far above 1. Values above 2¹²⁰ may overflow so.

use super::{chunk::PANEL, pairs::Engine};
use crate::{
    amx::ROWS,
    simd::{Avx512, vector::Vectors},
};
use std::{
    arch::x86_64::{
        __m512, __mmask16, _CMP_GT_OQ, _CMP_NEQ_UQ, _mm512_add_ps, _mm512_castps_si512, _mm512_castsi512_ps,
        _mm512_cmp_ps_mask, _mm512_fmadd_ps, _mm512_fmsub_ps, _mm512_mask_mov_ps, _mm512_max_ps, _mm512_mul_ps,
        _mm512_set1_ps, _mm512_setzero_ps, _mm512_slli_epi32, _mm512_sub_ps,
    },
    marker::PhantomData,
};

/// How far a row's scores, which are exponents of 2, may exceed what they are counted from.
const SLACK: f32 = 8.0;

/// The exponent of 2 that is taken for that of 0, and the least that is looked at.
pub(super) const LEAST: f32 = -127.0;

/// What the scores of two vectors of rows are counted from.
pub(super) struct Bases<E> {
    /// What scores are multiplied by once that is subtracted: a large one is not rounded in between.
    power: Power<E>,
    old: [__m512; 2],
    bases: [__m512; 2],
    /// Rows whose base rose, of those that had one.
    rose: [__mmask16; 2],
}

impl<E: Engine> Bases<E> {
    /// For the rows from lane `at` on, of which `max` has the bases of before, and gets those of now.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    pub(super) fn of(s: &[f32], at: usize, scale: f32, max: &mut [f32]) -> Self {
        let slack = _mm512_set1_ps(SLACK / scale);
        let power = Power { scale: _mm512_set1_ps(scale), least: _mm512_set1_ps(LEAST / scale), engine: PhantomData };
        let mut all = Self { power, old: [slack; 2], bases: [slack; 2], rose: [0; 2] };
        for half in 0..2 {
            let lane = at + half * ROWS;
            // Four, so that none waits for its own last result.
            let mut largest = [_mm512_set1_ps(f32::NEG_INFINITY); 4];
            for s in s.as_chunks::<{ 4 * PANEL }>().0 {
                for (i, largest) in largest.iter_mut().enumerate() {
                    *largest = _mm512_max_ps(<Avx512 as Vectors<f32>>::load(&s[i * PANEL + lane..]), *largest);
                }
            }
            let [a, b, c, d] = largest;
            let largest = _mm512_max_ps(_mm512_max_ps(a, b), _mm512_max_ps(c, d));
            let old = <Avx512 as Vectors<f32>>::load(&max[lane..]);
            let follows = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(largest, _mm512_add_ps(old, slack));
            let new = _mm512_mask_mov_ps(old, follows, largest);
            <Avx512 as Vectors<f32>>::store(new, &mut max[lane..]);
            let nothing = _mm512_set1_ps(f32::NEG_INFINITY);
            let has_seen = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(old, nothing);
            let sees = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(new, nothing);
            all.old[half] = old;
            all.bases[half] = _mm512_mask_mov_ps(_mm512_setzero_ps(), sees, new);
            // What has seen nothing has sums of 0.
            all.rose[half] = follows & has_seen;
        }
        all
    }

    /// Whether sums are to be rescaled.
    pub(super) fn rose(&self) -> bool {
        self.rose != [0; 2]
    }

    /// Rescales the rows' sums of weights, and of values.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    pub(super) fn rescale(&self, at: usize, sum: &mut [f32], acc: &mut [f32]) {
        for half in (0..2).filter(|&half| self.rose[half] != 0) {
            let lane = at + half * ROWS;
            let [shrunk] = self.power.of([_mm512_sub_ps(self.old[half], self.bases[half])]);
            let factor = _mm512_mask_mov_ps(_mm512_set1_ps(1.0), self.rose[half], shrunk);
            for sum in sum[lane..].chunks_mut(PANEL).take(1).chain(acc[lane..].chunks_mut(PANEL)) {
                let scaled = _mm512_mul_ps(<Avx512 as Vectors<f32>>::load(sum), factor);
                <Avx512 as Vectors<f32>>::store(scaled, sum);
            }
        }
    }

    /// Makes scores weights, those of keys from `key` on of those that wait, and adds them to the rows' sums.
    ///
    /// # Safety
    /// `out` has [room](super::pairs::Sizes::weights) for them.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    pub(super) unsafe fn weigh(&self, s: &[f32], at: usize, sum: &mut [f32], (key, out): (usize, *mut u8)) {
        let mut sums = [_mm512_setzero_ps(); 4];
        for (i, four) in s.as_chunks::<{ 4 * PANEL }>().0.iter().enumerate() {
            // Of each key both halves.
            let place = |i: usize| i / 2 * PANEL + at + i % 2 * ROWS;
            let x = std::array::from_fn(|i| {
                _mm512_sub_ps(<Avx512 as Vectors<f32>>::load(&four[place(i)..]), self.bases[i % 2])
            });
            let weights: [__m512; 8] = self.power.of(x);
            for (j, weight) in weights.iter().enumerate() {
                sums[j % 4] = _mm512_add_ps(sums[j % 4], *weight);
            }
            for pair in 0..2 {
                for half in 0..2 {
                    let both = [weights[4 * pair + half], weights[4 * pair + half + 2]];
                    // SAFETY: passed on.
                    unsafe { E::put(key / 2 + 2 * i + pair, at + half * ROWS, both, out) };
                }
            }
        }
        for half in 0..2 {
            let sum = &mut sum[at + half * ROWS..];
            let more = _mm512_add_ps(sums[half], sums[2 + half]);
            <Avx512 as Vectors<f32>>::store(_mm512_add_ps(<Avx512 as Vectors<f32>>::load(sum), more), sum);
        }
    }
}

/// Powers of 2.
struct Power<E> {
    /// What exponents are multiplied by first.
    scale: __m512,
    /// [`LEAST`] before that.
    least: __m512,
    engine: PhantomData<E>,
}

impl<E: Engine> Power<E> {
    /// 2ˣ for each x times the scale, as exact as [`Engine::POWERS`].
    ///
    /// Step by step of all of them, since a core that another thread shares looks too little ahead to find what else it could do.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    fn of<const N: usize>(&self, x: [__m512; N]) -> [__m512; N] {
        let round = _mm512_set1_ps(12_582_912.0 + 127.0);
        // Of NaN and a number, the second.
        let x = x.map(|x| _mm512_max_ps(self.least, x));
        let rounded = x.map(|x| _mm512_fmadd_ps(x, self.scale, round));
        let n = rounded.map(|rounded| _mm512_sub_ps(rounded, round));
        let r: [__m512; N] = std::array::from_fn(|i| _mm512_fmsub_ps(x[i], self.scale, n[i]));
        let mut p = [_mm512_set1_ps(E::POWERS[0]); N];
        for term in &E::POWERS[1..] {
            p = std::array::from_fn(|i| _mm512_fmadd_ps(p[i], r[i], _mm512_set1_ps(*term)));
        }
        let powers = rounded.map(|rounded| _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_castps_si512(rounded))));
        std::array::from_fn(|i| _mm512_mul_ps(p[i], powers[i]))
    }
}
