//! Sizes that break kernels: around the powers of two, and odd.

/// Sizes beside every tile edge up to 256.
pub const EDGES: [u32; 16] = [1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 255, 257];

/// `count` triples in which every size of `EDGES` meets many others; no two triples are equal for `count` up to 256.
pub fn triples(count: usize) -> impl Iterator<Item = [u32; 3]> {
    (0..count).map(|i| {
        let turn = i / EDGES.len();
        // 7 is prime to 16, so a few triples already reach both ends of the list.
        let at = |step: usize, offset: usize| EDGES[(i * step + offset + turn) % EDGES.len()];
        [at(7, 5), at(3, 9 + 2 * turn), at(5, 2 + 5 * turn)]
    })
}

/// `count` pairs, as `triples`.
pub fn pairs(count: usize) -> impl Iterator<Item = [u32; 2]> {
    triples(count).map(|[x, y, _]| [x, y])
}
