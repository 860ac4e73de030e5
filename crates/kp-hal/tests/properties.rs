//! What holds for every problem, not only for those that someone thought of.
//!
//! A failure prints the smallest input that still fails, mostly a problem line: add it to `problems.rs`.

mod specs;

use kp_hal::op::*;
use kp_hal::{DType, Real};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use specs::Tape;
use std::cell::RefCell;

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

fn tape() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(any::<u32>(), 0..64)
}

/// Runs `test` on problems of every op, and makes sure that enough of what is drawn are problems.
fn on_problems(name: &str, test: impl Fn(&AnyProblem) -> Result<(), TestCaseError>) {
    const CASES: u32 = 400;
    let built = RefCell::new([0; AnyProblem::OPS.len()]);
    let result = TestRunner::new(cases(CASES)).run(&tape(), |numbers| {
        for op in 0..AnyProblem::OPS.len() {
            match specs::problem(op, &mut Tape::new(&numbers)) {
                Ok(problem) => {
                    built.borrow_mut()[op] += 1;
                    test(&problem).map_err(|e| TestCaseError::fail(format!("{problem}\n{e}")))?;
                }
                Err(e) => one_line(&e)?,
            }
        }
        Ok(())
    });
    if let Err(e) = result {
        panic!("{name}: {e}");
    }
    for (op, count) in AnyProblem::OPS.iter().zip(built.into_inner()) {
        assert!(count > CASES / 20, "only {count} of {CASES} drawn specs of {op} are problems");
    }
}

fn one_line(error: &BadProblem) -> Result<(), TestCaseError> {
    let text = error.to_string();
    prop_assert!(text.chars().count() < 400, "{} characters: {text}", text.chars().count());
    prop_assert!(!text.is_empty() && !text.chars().any(char::is_control), "{text:?}");
    Ok(())
}

#[test]
fn the_text_of_a_problem_is_its_one_spelling() {
    on_problems("round trip", |problem| {
        let text = problem.to_string();
        let read: AnyProblem = text.parse().map_err(|e| TestCaseError::fail(format!("does not parse: {e}")))?;
        prop_assert_eq!(&read, problem);
        prop_assert_eq!(&read.to_string(), &text);
        // Options may stand in any order.
        let words: Vec<&str> = text.split(' ').collect();
        let (first, options) = words.split_at(3);
        let backwards: Vec<&str> = first.iter().chain(options.iter().rev()).copied().collect();
        prop_assert_eq!(backwards.join("  ").parse(), Ok(*problem));
        Ok(())
    });
}

/// Asserts what [`every_number_a_problem_has_is_finite`] says.
struct Count;
impl OpVisitor for Count {
    type Out = Result<(), TestCaseError>;
    fn visit<O: Op>(self, problem: &Problem<O::Spec>) -> Self::Out {
        let needs = needs::<O>(problem);
        for (i, operand) in <O::Args<'_> as Args<'_>>::OPERANDS.iter().enumerate() {
            let need = needs.get(i);
            prop_assert!(need.is_present() || operand.optional, "{} is missing", operand.name);
            if need.is_present() {
                prop_assert!(need.bytes <= i64::MAX as u64, "{} has {} bytes", operand.name, need.bytes);
                prop_assert!(need.align.is_power_of_two() && need.align >= problem.align().bytes());
                prop_assert!(operand.output || need.reads, "{} is neither read nor written", operand.name);
            }
        }
        let flops = problem.flops();
        prop_assert!(flops.is_finite() && flops >= 0.0, "{flops} flops");
        let _ = problem.bytes();
        Ok(())
    }
}

#[test]
fn every_number_a_problem_has_is_finite() {
    on_problems("numbers", |problem| problem.visit(Count));
}

/// Bytes of the operand `name`, if the problem has it.
struct Bytes(&'static str);
impl OpVisitor for Bytes {
    type Out = Option<u64>;
    fn visit<O: Op>(self, problem: &Problem<O::Spec>) -> Option<u64> {
        let at = <O::Args<'_> as Args<'_>>::OPERANDS.iter().position(|o| o.name == self.0)?;
        let need = *needs::<O>(problem).get(at);
        need.is_present().then_some(need.bytes)
    }
}

#[test]
fn scales_are_counted_in_full_or_refused() {
    on_problems("scales", |problem| {
        let of = |outer: u32, inner: u32, batch: u32, format: Format| {
            let (o, i) = format.block();
            let blocks = u128::from(outer.div_ceil(o)) * u128::from(inner.div_ceil(i)) * u128::from(batch);
            let one = format.scale_dtype().map_or(0, |t| t.bytes(1));
            if format.scheme == Scheme::Tensor { u128::from(one) } else { blocks * u128::from(one) }
        };
        let (name, want) = match problem {
            AnyProblem::Attention(p) if p.q.scheme == Scheme::Row => {
                let (batch, len) = p.q_extent();
                ("q_scale", u128::from(batch) * u128::from(len) * u128::from(p.q_heads) * 4)
            }
            AnyProblem::Dequantize(p) => ("scale", of(p.rows, p.cols, 1, p.q.format)),
            AnyProblem::Gemm(p) if p.b.format.scheme != Scheme::None => ("b_scale", of(p.n, p.k, p.batch, p.b.format)),
            _ => return Ok(()),
        };
        let got = problem.visit(Bytes(name)).map_or(0, u128::from);
        // Only layouts other than rows of scales pad.
        prop_assert!(got >= want, "{name} has {got} bytes for {want} bytes of scales");
        prop_assert!(problem.to_string().contains('^') || got == want, "{name} has {got} bytes, not {want}");
        Ok(())
    });
}

/// Pieces that break text in ways that a random character seldom does.
const PIECES: &[&str] = &[
    "=",
    ":",
    "x",
    "@",
    "^",
    "/",
    " ",
    "(",
    ")",
    "-1",
    "0",
    "4294967296",
    "99999999999999999999999",
    "𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛𝔛",
    "\u{10ffff}",
    "\u{0}",
    "\u{1b}[31m",
    "\n",
    "\r",
    "é",
    "mask=",
    "mask=((((q",
    "gemm",
    "repro=fast",
    "align=3",
    "nan",
    "1e999",
    "@1x128",
    "@g0/f16z",
    "panel0x0",
    "col/0/0",
    "segments/",
    "packed/1/1",
    "\u{202e}",
    "\u{feff}",
];

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn damaged_lines_are_problems_or_one_line_of_complaint(
        op in 0..AnyProblem::OPS.len(),
        numbers in tape(),
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0..9_usize, 0..PIECES.len()), 1..4),
    ) {
        let Ok(problem) = specs::problem(op, &mut Tape::new(&numbers)) else { return Ok(()) };
        let mut text: Vec<char> = problem.to_string().chars().collect();
        for (at, remove, piece) in cuts {
            let at = at.index(text.len() + 1);
            let end = (at + remove.saturating_sub(4)).min(text.len());
            text.splice(at..end, PIECES[piece].chars());
        }
        accepted_or_refused(&text.into_iter().collect::<String>())?;
    }

    #[test]
    fn any_text_is_a_problem_or_one_line_of_complaint(
        op in 0..=AnyProblem::OPS.len(),
        tail in prop::collection::vec(any::<char>(), 0..200),
    ) {
        let tail: String = tail.into_iter().collect();
        accepted_or_refused(&tail)?;
        if let Some(op) = AnyProblem::OPS.get(op) {
            accepted_or_refused(&format!("{op} {tail}"))?;
        }
    }
}

fn accepted_or_refused(text: &str) -> Result<(), TestCaseError> {
    match text.parse::<AnyProblem>() {
        Ok(problem) => prop_assert_eq!(problem.to_string().parse(), Ok(problem)),
        Err(e) => one_line(&e)?,
    }
    Ok(())
}

/// An expression as a tree: operands joined by binary operators, as they stand in text.
#[derive(Clone, Debug)]
enum Tree {
    Number(u32),
    Var(char),
    Not(Box<Tree>),
    Minus(Box<Tree>),
    Chain(Vec<Tree>, Vec<&'static str>),
}

/// Loosest first, as in C.
const LEVELS: &[&[&str]] = &[&["||"], &["&&"], &["==", "!="], &["<", "<=", ">", ">="], &["+", "-"], &["*", "/", "%"]];

fn tree() -> impl Strategy<Value = Tree> {
    let operators: Vec<&'static str> = LEVELS.concat();
    let small = prop_oneof![0..9_u32, any::<u32>()];
    let leaf =
        prop_oneof![prop::sample::select(vec!['q', 'k', 'h', 'b']).prop_map(Tree::Var), small.prop_map(Tree::Number)];
    leaf.prop_recursive(3, 12, 4, move |inner| {
        let joined = prop::collection::vec((inner.clone(), prop::sample::select(operators.clone())), 1..4);
        prop_oneof![
            inner.clone().prop_map(|t| Tree::Not(t.into())),
            inner.clone().prop_map(|t| Tree::Minus(t.into())),
            (inner, joined).prop_map(|(first, rest)| {
                let (operands, operators): (Vec<Tree>, Vec<&str>) = rest.into_iter().unzip();
                Tree::Chain([vec![first], operands].concat(), operators)
            }),
        ]
    })
}

impl Tree {
    /// As one operand of a longer text.
    fn operand(&self) -> String {
        match self {
            Self::Chain(..) => format!("({})", self.text()),
            _ => self.text(),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Number(n) => n.to_string(),
            Self::Var(v) => v.to_string(),
            Self::Not(t) => format!("!{}", t.operand()),
            Self::Minus(t) => format!("-{}", t.operand()),
            Self::Chain(operands, operators) => {
                let rest = operators.iter().zip(&operands[1..]);
                rest.fold(operands[0].operand(), |text, (op, t)| format!("{text}{op}{}", t.operand()))
            }
        }
    }

    fn value(&self, vars: Vars) -> i64 {
        match self {
            Self::Number(n) => i64::from(*n),
            Self::Var('q') => vars.q,
            Self::Var('k') => vars.k,
            Self::Var('h') => vars.h,
            Self::Var(_) => vars.b,
            Self::Not(t) => i64::from(t.value(vars) == 0),
            Self::Minus(t) => 0_i64.wrapping_sub(t.value(vars)),
            Self::Chain(operands, operators) => {
                let values: Vec<i64> = operands.iter().map(|t| t.value(vars)).collect();
                chain(&values, operators)
            }
        }
    }
}

/// The last operator of the loosest level that occurs is applied last.
fn chain(values: &[i64], operators: &[&str]) -> i64 {
    let Some(at) = LEVELS.iter().find_map(|level| operators.iter().rposition(|op| level.contains(op))) else {
        return values[0];
    };
    let (a, b) = (chain(&values[..=at], &operators[..at]), chain(&values[at + 1..], &operators[at + 1..]));
    match operators[at] {
        "||" => i64::from(a != 0 || b != 0),
        "&&" => i64::from(a != 0 && b != 0),
        "==" => i64::from(a == b),
        "!=" => i64::from(a != b),
        "<" => i64::from(a < b),
        "<=" => i64::from(a <= b),
        ">" => i64::from(a > b),
        ">=" => i64::from(a >= b),
        "+" => a.wrapping_add(b),
        "-" => a.wrapping_sub(b),
        "*" => a.wrapping_mul(b),
        "/" => a.checked_div(b).unwrap_or(if b == 0 { 0 } else { i64::MIN }),
        _ => a.checked_rem(b).unwrap_or(0),
    }
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn expressions_mean_what_a_naive_reading_says(
        tree in tree(),
        small in [-9..9_i64, -9..9, 0..4, 0..4],
        large in any::<[i64; 4]>(),
    ) {
        let text = tree.text();
        // What is too long is refused; whatever is accepted must be right.
        prop_assume!(text.parse::<Expr>().is_ok());
        let expr: Expr = text.parse().expect("just parsed");
        for [q, k, h, b] in [small, large] {
            let vars = Vars { q, k, h, b };
            prop_assert_eq!(expr.eval(vars), tree.value(vars), "{} at {:?}", text, vars);
        }
        let shown = expr.to_string();
        prop_assert!(shown.len() <= text.len(), "{text} grew to {shown}");
        prop_assert_eq!(shown.parse(), Ok(expr));
        let mask = format!("({text})");
        prop_assert_eq!(mask.parse(), Ok(Mask::Expr(expr)));
    }

    #[test]
    fn small_words_round_trip(numbers in tape(), bits in any::<u32>()) {
        let mut t = Tape::new(&numbers);
        let (format, order, mask) = (t.narrow(), t.order(), t.mask());
        prop_assert_eq!(format.to_string().parse(), Ok(format));
        prop_assert_eq!(order.to_string().parse(), Ok(order));
        prop_assert_eq!(mask.to_string().parse(), Ok(mask));
        if let Some(scheme) = format.to_string().split_once('@').map(|(_, s)| s.split('^').next().unwrap_or(s).to_owned()) {
            prop_assert_eq!(scheme.parse(), Ok(format.scheme));
        }
        if let Some(real) = Real::new(f32::from_bits(bits)) {
            prop_assert_eq!(real.to_string().parse(), Ok(real));
            prop_assert_eq!(real.get(), f32::from_bits(bits));
        }
    }

    #[test]
    fn every_element_has_its_own_place_inside_the_span(
        numbers in tape(), rows in 1..24_u32, cols in 1..24_u32, batch in 1..4_u32,
    ) {
        let mut t = Tape::new(&numbers);
        let order = match t.order() {
            Order::Panel { width, depth } => Order::Panel { width: 1 + width % 20, depth },
            other => other,
        };
        let m = t.matrix(DType::F32.into(), order, rows, cols);
        let copies = if m.stride < m.span(rows, cols, 1) { 1 } else { batch };
        let start = |b: u32| u64::from(b) * m.stride;
        let mut places: Vec<u64> = (0..copies)
            .flat_map(|b| (0..rows).flat_map(move |r| (0..cols).map(move |c| start(b) + m.index(r, c, rows))))
            .collect();
        places.sort_unstable();
        prop_assert!(places.windows(2).all(|pair| pair[0] < pair[1]), "{:?} puts two elements in one place", m);
        let (last, span) = (places[places.len() - 1], m.span(rows, cols, copies));
        prop_assert!(last < span, "{:?}: place {} of {}", m, last, span);
        if !matches!(order, Order::Panel { .. }) {
            prop_assert_eq!(last + 1, span, "the span of rows or columns ends with the last element");
        }
    }

    #[test]
    fn every_scale_has_its_own_place(numbers in tape(), outer in 1..300_u32, inner in 1..300_u32) {
        let format = Tape::new(&numbers).narrow();
        let (blocks_out, blocks_in) = format.blocks(outer, inner);
        let mut places: Vec<u64> = (0..blocks_out)
            .flat_map(|o| (0..blocks_in).map(move |i| format.scale_index((o, i), (outer, inner))))
            .collect();
        places.sort_unstable();
        prop_assert!(places.windows(2).all(|pair| pair[0] < pair[1]), "{} puts two scales in one place", format);
        let count = format.scale_count(outer, inner);
        prop_assert!(places.last().is_some_and(|&last| last < count), "{}: {:?} of {}", format, places.last(), count);
    }
}
