//! The barriers of `sm100.cu`, in every order that copies, products and warps may take.
//!
//! A model of the source's roles, since no device has run them: one step is what one role does between two waits, or the arrival of
//! something asynchronous. All orders are tried. What may go wrong: a stage is overwritten while products read it, or read before it is
//! whole; sums are overwritten before they are stored, or stored before they are whole; everybody waits; something arrives at a barrier of a
//! block that is gone.

use std::collections::HashSet;

/// What of the source is left out, to see that it is missed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Without {
    Nothing,
    /// Copies do not wait for products.
    Empty,
    /// Products do not wait for stores.
    Free,
    /// Products wait for the copies of their own block only.
    PeersCopies,
    /// Products wait for the stores of their own block only.
    PeersStores,
    /// Products wait for what the copying threads load, but not for what the gathering warps do.
    Gathered,
    /// Nobody waits, at the end, for what is yet to arrive.
    Draining,
}

#[derive(Clone, Copy)]
struct Shape {
    pair: usize,
    stages: usize,
    sums: usize,
    tiles: u8,
    k: u8,
    /// Stages that gathering warps are ahead of what has come, if there are such warps.
    gather: Option<u8>,
    without: Without,
}

/// An mbarrier: the phase that is under way, and what it waits for.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Barrier {
    phase: u8,
    count: i8,
    pending: i8,
    /// Copies, each a block's share of a stage.
    copies: i8,
}

impl Barrier {
    fn new(count: i8) -> Self {
        Self { phase: 0, count, pending: count, copies: 0 }
    }

    fn step(&mut self, arrivals: i8, copies: i8) {
        self.pending -= arrivals;
        self.copies += copies;
        if self.pending == 0 && self.copies == 0 {
            self.phase += 1;
            self.pending = self.count;
        }
    }

    /// Whether a wait for `parity` is over.
    fn is_past(&self, parity: usize) -> bool {
        usize::from(self.phase) % 2 != parity % 2
    }
}

/// What is under way. Products are complete in the order of issue, what tells of it arrives in any.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Event {
    Copy {
        block: usize,
        step: u8,
    },
    /// That a gathering warp's words have come.
    Full {
        stage: usize,
    },
    Empty {
        block: usize,
        stage: usize,
    },
    Done {
        block: usize,
        slot: usize,
    },
    Free {
        slot: usize,
    },
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Issued {
    Product(u8),
    /// Tells that a stage is empty.
    Stage(usize),
    /// Tells that sums are done.
    Sums(usize),
}

/// All of a cluster. Places of roles count what they have done, in steps of k or in tiles; past those, in drained barriers.
#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    full: Vec<Barrier>,
    free: Vec<Barrier>,
    empty: Vec<Vec<Barrier>>,
    done: Vec<Vec<Barrier>>,
    copying: Vec<u8>,
    /// Steps that gathering warps have begun, and told of.
    gathering: Vec<(u8, u8)>,
    multiplying: u8,
    storing: Vec<u8>,
    /// The step whose operands a stage holds.
    stage: Vec<Vec<Option<u8>>>,
    scales: Vec<Vec<Option<u8>>>,
    issued: Vec<Issued>,
    products: u8,
    events: Vec<Event>,
}

impl State {
    fn new(s: &Shape) -> Self {
        let stores = if s.without == Without::PeersStores { 1 } else { s.pair };
        let gathered = if s.gather.is_some() && s.without != Without::Gathered { s.pair } else { 0 };
        let each = |barriers: Vec<Barrier>| vec![barriers; s.pair];
        Self {
            full: vec![Barrier::new(1 + gathered as i8); s.stages],
            free: vec![Barrier::new(stores as i8); s.sums],
            empty: each(vec![Barrier::new(1); s.stages]),
            done: each(vec![Barrier::new(1); s.sums]),
            copying: vec![0; s.pair],
            gathering: vec![(0, 0); s.pair],
            multiplying: 0,
            storing: vec![0; s.pair],
            stage: vec![vec![None; s.stages]; s.pair],
            scales: vec![vec![None; s.stages]; s.pair],
            issued: Vec::new(),
            products: 0,
            events: Vec::new(),
        }
    }

    /// The states that may follow; empty if nobody can go on.
    fn next(&self, s: &Shape) -> Result<Vec<Self>, String> {
        let mut all = Vec::new();
        let (steps, draining) = (s.tiles * s.k, s.pair == 2 && s.without != Without::Draining);
        let copies_end = steps + if draining { s.stages as u8 } else { 0 };
        for block in 0..s.pair {
            let at = self.copying[block];
            let (stage, round) = (usize::from(at) % s.stages, usize::from(at) / s.stages);
            if at < copies_end && (self.empty[block][stage].is_past(round + 1) || s.without == Without::Empty) {
                let mut new = self.clone();
                new.copying[block] += 1;
                if at < steps {
                    if block == 0 {
                        let expected = if s.without == Without::PeersCopies { 1 } else { s.pair };
                        new.full[stage].step(1, expected as i8);
                    }
                    new.events.push(Event::Copy { block, step: at });
                }
                all.push(new);
            }
            all.extend(self.gather(s, block)?);
            all.extend(self.store(s, block)?);
        }
        all.extend(self.multiply(s, draining)?);
        if let Some(first) = self.issued.first() {
            let mut new = self.clone();
            new.issued.remove(0);
            match *first {
                Issued::Product(_) => new.products += 1,
                Issued::Stage(stage) => new.events.extend((0..s.pair).map(|block| Event::Empty { block, stage })),
                Issued::Sums(slot) => new.events.extend((0..s.pair).map(|block| Event::Done { block, slot })),
            }
            all.push(new);
        }
        for i in 0..self.events.len() {
            let mut new = self.clone();
            match new.events.remove(i) {
                Event::Copy { block, step } => {
                    let stage = usize::from(step) % s.stages;
                    let read =
                        |issued: &Issued| matches!(*issued, Issued::Product(by) if usize::from(by) % s.stages == stage);
                    if self.issued.iter().any(read) {
                        return Err(format!("stage {stage} is overwritten by step {step} while it is read"));
                    }
                    new.stage[block][stage] = Some(step);
                    new.full[stage].step(0, -1);
                }
                Event::Full { stage } => new.full[stage].step(1, 0),
                Event::Empty { block, stage } => new.empty[block][stage].step(1, 0),
                Event::Done { block, slot } => new.done[block][slot].step(1, 0),
                Event::Free { slot } => new.free[slot].step(1, 0),
            }
            all.push(new);
        }
        Ok(all)
    }

    /// The gathering warp of a block: begins a step, or tells of one.
    fn gather(&self, s: &Shape, block: usize) -> Result<Vec<Self>, String> {
        let Some(ahead) = s.gather else { return Ok(Vec::new()) };
        let ((begun, told), steps) = (self.gathering[block], s.tiles * s.k);
        if begun - told > ahead || begun == steps && told < begun {
            // What is awaited has come by then.
            let stage = usize::from(told) % s.stages;
            let mut new = self.clone();
            new.scales[block][stage] = Some(told);
            new.gathering[block].1 += 1;
            if s.without != Without::Gathered {
                new.events.push(Event::Full { stage });
            }
            return Ok(vec![new]);
        }
        let (stage, round) = (usize::from(begun) % s.stages, usize::from(begun) / s.stages);
        if begun == steps || !self.empty[block][stage].is_past(round + 1) {
            return Ok(Vec::new());
        }
        // From now on its words may come.
        if self.issued.iter().any(|i| matches!(*i, Issued::Product(by) if usize::from(by) % s.stages == stage)) {
            return Err(format!("scales of stage {stage} are overwritten by step {begun} while they are read"));
        }
        let mut new = self.clone();
        new.scales[block][stage] = None;
        new.gathering[block].0 += 1;
        Ok(vec![new])
    }

    /// The multiplying thread: one step of k, with what comes before a tile's first and after its last.
    fn multiply(&self, s: &Shape, draining: bool) -> Result<Option<Self>, String> {
        let (at, steps) = (self.multiplying, s.tiles * s.k);
        if at >= steps {
            let slot_at = usize::from(s.tiles) + usize::from(at - steps);
            let more = draining && usize::from(at - steps) < s.sums;
            let past = self.free[slot_at % s.sums].is_past(slot_at / s.sums + 1);
            return Ok((more && past).then(|| Self { multiplying: at + 1, ..self.clone() }));
        }
        let (tile, stage, round) = (at / s.k, usize::from(at) % s.stages, usize::from(at) / s.stages);
        let slot = usize::from(tile) % s.sums;
        let begins = at.is_multiple_of(s.k);
        let is_free = self.free[slot].is_past(usize::from(tile) / s.sums + 1) || s.without == Without::Free;
        if begins && !is_free || !self.full[stage].is_past(round) {
            return Ok(None);
        }
        for block in 0..s.pair {
            let (codes, scales) = (self.stage[block][stage], self.scales[block][stage]);
            if codes != Some(at) || s.gather.is_some() && scales != Some(at) {
                return Err(format!("step {at} reads {codes:?} and scales {scales:?} of block {block}"));
            }
            if begins && usize::from(tile) >= s.sums + usize::from(self.storing[block]) {
                return Err(format!("tile {tile} overwrites sums that block {block} has not stored"));
            }
        }
        // The scales of a stage are overwritten now.
        if self.issued.iter().any(|i| matches!(*i, Issued::Product(by) if usize::from(by) % s.stages == stage)) {
            return Err(format!("step {at} overwrites scales that are read"));
        }
        let mut new = self.clone();
        new.multiplying += 1;
        new.issued.extend([Issued::Product(at), Issued::Stage(stage)]);
        if (at + 1).is_multiple_of(s.k) {
            new.issued.push(Issued::Sums(slot));
        }
        Ok(Some(new))
    }

    /// The storing warps of a block: one tile.
    fn store(&self, s: &Shape, block: usize) -> Result<Option<Self>, String> {
        let tile = self.storing[block];
        let (slot, round) = (usize::from(tile) % s.sums, usize::from(tile) / s.sums);
        if tile == s.tiles || !self.done[block][slot].is_past(round) {
            return Ok(None);
        }
        if self.products < (tile + 1) * s.k {
            return Err(format!("tile {tile} is stored after {} products", self.products));
        }
        let mut new = self.clone();
        new.storing[block] += 1;
        new.events.push(Event::Free { slot });
        Ok(Some(new))
    }

    /// Whether all roles have ended; then nothing may be under way to the other block.
    fn ended(&self, s: &Shape) -> Result<bool, String> {
        let (steps, draining) = (s.tiles * s.k, s.pair == 2 && s.without != Without::Draining);
        let more = |n: usize| if draining { n as u8 } else { 0 };
        let ended = self.copying.iter().all(|&at| at == steps + more(s.stages))
            && self.multiplying == steps + more(s.sums)
            && self.storing.iter().all(|&at| at == s.tiles)
            && (s.gather.is_none() || self.gathering.iter().all(|&at| at == (steps, steps)));
        // A block alone has nobody to outlive: what is under way to it is its own.
        if ended && s.pair == 2 && !(self.events.is_empty() && self.issued.is_empty()) {
            return Err("a block ends while something is under way to it".to_owned());
        }
        Ok(ended)
    }
}

/// Tries every order, and how many states there are.
fn explore(s: &Shape) -> Result<usize, String> {
    let first = State::new(s);
    let (mut seen, mut left) = (HashSet::from([first.clone()]), vec![first]);
    while let Some(mut state) = left.pop() {
        state.events.sort_by_key(|event| match *event {
            Event::Copy { block, step } => (0, block, usize::from(step)),
            Event::Empty { block, stage } => (1, block, stage),
            Event::Done { block, slot } => (2, block, slot),
            Event::Free { slot } => (3, 0, slot),
            Event::Full { stage } => (4, 0, stage),
        });
        let next = state.next(s)?;
        if !state.ended(s)? && next.is_empty() {
            return Err("everybody waits".to_owned());
        }
        for new in next {
            if seen.insert(new.clone()) {
                left.push(new);
            }
        }
    }
    Ok(seen.len())
}

const SHAPES: [Shape; 7] = [
    Shape { pair: 1, stages: 2, sums: 2, tiles: 5, k: 3, gather: None, without: Without::Nothing },
    Shape { pair: 1, stages: 3, sums: 1, tiles: 4, k: 2, gather: None, without: Without::Nothing },
    Shape { pair: 2, stages: 2, sums: 2, tiles: 3, k: 1, gather: None, without: Without::Nothing },
    Shape { pair: 2, stages: 2, sums: 1, tiles: 2, k: 3, gather: None, without: Without::Nothing },
    Shape { pair: 2, stages: 3, sums: 2, tiles: 3, k: 2, gather: None, without: Without::Nothing },
    Shape { pair: 1, stages: 4, sums: 2, tiles: 3, k: 2, gather: Some(2), without: Without::Nothing },
    Shape { pair: 2, stages: 2, sums: 1, tiles: 2, k: 2, gather: Some(1), without: Without::Nothing },
];

#[test]
fn no_order_breaks_the_protocol() {
    for shape in &SHAPES {
        let states =
            explore(shape).unwrap_or_else(|why| panic!("{} blocks, {} stages: {why}", shape.pair, shape.stages));
        assert!(states > 100, "{states} states are hardly all orders");
    }
}

/// Each wait is needed: without it, some order goes wrong.
#[test]
fn every_wait_is_missed() {
    for without in [Without::Empty, Without::Free, Without::PeersCopies, Without::PeersStores, Without::Draining] {
        let found = explore(&Shape { without, ..SHAPES[3] });
        assert!(found.is_err(), "nobody misses {without:?}");
    }
    assert!(explore(&Shape { without: Without::Gathered, ..SHAPES[6] }).is_err(), "nobody misses what is gathered");
}
